//! Programs that come, are replaced and go beside others on one port: the same words on every hook.

use xway_hook::{AttachRequest, Attached, Hook, Image, LoadRequest, Mode, ObjectId, ProgId, Replace};

/// Most programs beside each other.
const MOST: usize = 4;

/// Loads a program in each round; it joins the others, or takes the place of one of them when there are [`MOST`]. Some go. `seen`
/// hears of each that was attached. At the end none is left.
pub fn several(
    hook: &mut dyn Hook,
    (port, mode): (&str, Mode),
    image: &Image,
    rounds: u32,
    seen: &mut dyn FnMut(&Attached),
) {
    let mut members: Vec<ProgId> = Vec::new();
    for round in 0..rounds {
        let objects = hook.load(image, &LoadRequest::default()).unwrap();
        let program = objects.programs[0].1;
        let full = members.len() == MOST;
        let at = round as usize % MOST;
        let replace = if full { Replace::Id(members[at].0) } else { Replace::Never };
        // In front of the others, among them and behind them.
        let priority = 10 + round * 7 % 40;
        let request = AttachRequest { mode, replace, priority, chain: true, ..AttachRequest::new(port, program) };
        let done = hook.attach(&request).unwrap_or_else(|e| panic!("round {round}: {e}"));
        seen(&done);
        match full {
            true => members[at] = done.program,
            false => members.push(done.program),
        }
        objects.programs.iter().for_each(|(_, id)| hook.release(ObjectId::Program(*id)).unwrap());
        objects.maps.iter().for_each(|(_, id)| hook.release(ObjectId::Map(*id)).unwrap());
        if round % 5 == 4 {
            let gone = members.remove(round as usize % members.len());
            assert_eq!(hook.detach(port, Some(gone)).unwrap(), [gone]);
        }
        let there = hook.attachments(Some(port)).unwrap();
        assert_eq!(there.len(), members.len(), "round {round}");
        assert!(there.iter().all(|a| members.contains(&a.program.id)), "round {round}");
    }
    if !members.is_empty() {
        hook.detach(port, None).unwrap();
    }
    assert!(hook.attachments(Some(port)).unwrap().is_empty());
}
