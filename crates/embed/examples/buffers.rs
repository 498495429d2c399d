//! A program over packets in one's own memory: `buffers OBJECT [PROGRAM]`.

use xway_embed::{Filter, Packet, Verdict};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let object = std::fs::read(arguments.next().ok_or("buffers OBJECT [PROGRAM]")?)?;
    let mut filter = Filter::load(&object, arguments.next().as_deref())?; // read, verified, compiled

    let mut memory = vec![[0u8; 2048]; 1000]; // wherever packets lie, with 256 bytes in front
    let mut packets: Vec<Packet<'_>> =
        memory.iter_mut().map(|buffer| Packet::new(buffer, 256..316)).collect::<Result<_, _>>()?;
    let passed = filter.run(&mut packets).filter(|(_, verdict)| *verdict == Verdict::Pass).count();

    println!("{} ({}): {passed} of {} pass", filter.name(), filter.engine().0, packets.len());
    for (name, map) in filter.maps() {
        println!("map {name}: {} bytes a value", map.value_size());
    }
    Ok(())
}
