//! Counters for Prometheus: one page of text over HTTP, off unless an address is given.
//!
//! Only `GET /metrics` is answered. Format: the Prometheus text exposition format, version 0.0.4.

use std::net::TcpListener;
use std::sync::Arc;

mod page;
mod serve;

use crate::server::Shared;

pub use page::METRICS;
pub(crate) use page::page;

/// Answers until the service ends.
pub(crate) fn serve(listener: &TcpListener, shared: &Arc<Shared>) {
    serve::serve(listener, || shared.state().metrics(), || shared.stop.asked());
}
