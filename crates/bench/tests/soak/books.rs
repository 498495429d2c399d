//! What is counted, and that it adds up.

use xway_engine::{Counters, QueueReport};

/// What closed queues counted, with each one's balance looked at.
#[derive(Default)]
pub struct Books {
    pub sum: Counters,
    /// Of what the ports said that they sent: more by copies, less by losses.
    pub doubled: u64,
    pub lost: u64,
    pub failed: u64,
}

impl Books {
    pub fn close(&mut self, report: QueueReport) {
        let what = format!("{} queue {}", report.port, report.queue);
        assert_eq!(report.counters.balance(), Ok(()), "{what}");
        assert_eq!(report.counters.relay_balance(), Ok(()), "{what}");
        assert_eq!((report.leak, report.pool.outstanding), (None, 0), "{what}");
        let of = |name: &str| report.stats.other.iter().find(|(known, _)| *known == name).map_or(0, |&(_, n)| n);
        // What came out of the port, less what its wire lost and more what it doubled, is what the worker got.
        let got = report.stats.rx - of("fault: lost on receive") + of("fault: doubled on receive");
        assert_eq!(got - of("fault: held on receive"), report.counters.rx, "{what}");
        self.doubled += of("fault: doubled on send");
        self.lost += of("fault: lost on send") + of("fault: held on send");
        self.failed += u64::from(report.error.is_some());
        self.sum.merge(&report.counters);
    }
}
