//! An engine with two ports: what one receives and passes leaves by the other, until Enter. `engine OBJECT IN OUT`, with names of interfaces.

use std::sync::Arc;

use xway_engine::{AttachFlags, Engine, EngineConfig, HookPoint, Linked, OneQueue, PassTo, PortConfig};
use xway_object::{LoadOptions, Object, Select};
use xway_port_packet::{PacketConfig, PacketPort};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [object, from, to] = &words[..] else { return Err("engine OBJECT IN OUT".into()) };
    let object = Arc::new(Object::parse(&std::fs::read(object)?, &LoadOptions::of_running_kernel())?);
    let image = object.select(&Select::Only)?.as_xdp()?;
    let instance = xway_vm::Instance::verified(object, 1, Default::default())?;
    let program = Arc::new(Linked::new(instance.link(&image)?));

    let engine = Engine::start(EngineConfig::default())?;
    let [input, output] = [from, to].map(|name| PacketPort::open(&PacketConfig::new(name)));
    let (input, output) = (OneQueue::new(Box::new(input?)), OneQueue::new(Box::new(output?)));
    let (receives, sends) = (xway_engine::Device::ifindex(&input), xway_engine::Device::ifindex(&output));
    engine.open(Box::new(output), PortConfig::default())?;
    engine.open(Box::new(input), PortConfig { pass: PassTo::Port(sends), ..PortConfig::default() })?;
    engine.attach(HookPoint { ifindex: receives, queue: None }, program, AttachFlags::default())?;

    std::io::stdin().read_line(&mut String::new())?; // until Enter
    for queue in engine.stop().queues {
        println!(
            "{} queue {}: {} received, {} passed",
            queue.port, queue.queue, queue.counters.rx, queue.counters.passed
        );
    }
    Ok(())
}
