//! Numbers for attachments: what Linux's links have.
//!
//! An attachment is a program at a point, a port or one of its queues. It keeps its number when its program is replaced, and takes it along
//! when it goes; numbers are never given twice.

use xway_engine::{HookPoint, PortState};

/// One attachment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Link {
    number: u32,
    point: HookPoint,
    program: u32,
}

/// All attachments that were made here.
#[derive(Default)]
pub(super) struct Links {
    all: Vec<Link>,
    last: u32,
}

/// What is attached: points with programs.
pub(super) fn present(ports: &[PortState]) -> Vec<(HookPoint, u32)> {
    let of = |port: &PortState| {
        let at = |queue| HookPoint { ifindex: port.ifindex, queue };
        let whole = port.programs.iter().map(|a| (at(None), a.program.id())).collect::<Vec<_>>();
        let single = port.queue_programs.iter().flat_map(|(q, all)| all.iter().map(|a| (at(Some(*q)), a.program.id())));
        whole.into_iter().chain(single.collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    ports.iter().flat_map(of).collect()
}

impl Links {
    /// A program came to a point, in the place of another one or beside what is there.
    pub fn came(&mut self, point: HookPoint, program: u32, in_place_of: Option<u32>) {
        let old = in_place_of.and_then(|old| self.all.iter_mut().find(|l| l.point == point && l.program == old));
        match old {
            Some(link) => link.program = program,
            None => {
                self.last += 1;
                self.all.push(Link { number: self.last, point, program });
            }
        }
    }

    /// Forgets what is attached no more.
    pub fn keep(&mut self, present: &[(HookPoint, u32)]) {
        self.all.retain(|link| present.contains(&(link.point, link.program)));
    }

    /// The number of a program at a point.
    pub fn number(&self, point: HookPoint, program: u32) -> Option<u32> {
        self.all.iter().find(|l| l.point == point && l.program == program).map(|l| l.number)
    }

    /// What has a number.
    pub fn find(&self, number: u32) -> Option<(HookPoint, u32)> {
        self.all.iter().find(|l| l.number == number).map(|l| (l.point, l.program))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stays_with_its_attachment_and_is_never_given_again() {
        let mut links = Links::default();
        let (port, queue) = (HookPoint { ifindex: 3, queue: None }, HookPoint { ifindex: 3, queue: Some(1) });
        links.came(port, 10, None);
        links.came(queue, 10, None);
        links.came(port, 11, Some(10));
        assert_eq!((links.number(port, 11), links.number(queue, 10), links.number(port, 10)), (Some(1), Some(2), None));
        links.keep(&[(port, 11)]);
        assert_eq!((links.find(1), links.find(2)), (Some((port, 11)), None));
        links.came(queue, 10, None);
        assert_eq!(links.number(queue, 10), Some(3));
    }
}
