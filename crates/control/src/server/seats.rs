//! How many connections there are, and whose.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xway_hook::{Blame, HookError};

/// Counts connections. A user who is neither root nor the service's own gets at most half of them, so that nobody keeps all others out.
#[derive(Debug)]
pub(super) struct Seats {
    most: usize,
    users: Mutex<HashMap<u32, usize>>,
}

/// One connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Arc<Seats>,
    uid: u32,
}

impl Seats {
    pub fn new(most: usize) -> Arc<Seats> {
        Arc::new(Seats { most, users: Mutex::default() })
    }

    fn users(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more of this user's, if there is room.
    pub fn take(self: &Arc<Seats>, uid: u32, owner: bool) -> Result<Seat, HookError> {
        let mut users = self.users();
        let (all, own) = (users.values().sum::<usize>(), users.get(&uid).copied().unwrap_or(0));
        let share = if owner { self.most } else { (self.most / 2).max(1) };
        let message = match (all < self.most, own < share) {
            (true, true) => {
                users.insert(uid, own + 1);
                return Ok(Seat { seats: self.clone(), uid });
            }
            (false, _) => format!("{} connections are open, which is the most", self.most),
            (true, false) => format!("user {uid} has {own} connections open, half of all that there may be"),
        };
        Err(HookError::new(Blame::Machine, message).hint("later, or raise limits.connections"))
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.users().values().sum()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut users = self.seats.users();
        let left = users.get(&self.uid).map_or(0, |has| has.saturating_sub(1));
        if left == 0 {
            users.remove(&self.uid);
        } else {
            users.insert(self.uid, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_gets_half_and_the_owner_the_rest() {
        let seats = Seats::new(4);
        let stranger: Vec<_> = (0..2).map(|_| seats.take(7, false).unwrap()).collect();
        let refused = seats.take(7, false).unwrap_err();
        assert!(refused.message.contains("user 7 has 2 connections open, half"), "{refused}");
        let owner: Vec<_> = (0..2).map(|_| seats.take(0, true).unwrap()).collect();
        for (uid, owns) in [(0, true), (8, false)] {
            assert!(seats.take(uid, owns).unwrap_err().message.contains("4 connections are open"));
        }
        drop(stranger);
        assert_eq!(seats.taken(), 2);
        let _more = (seats.take(8, false).unwrap(), seats.take(0, true).unwrap());
        drop(owner);
        assert_eq!(seats.taken(), 2);
        assert!(Seats::new(1).take(7, false).is_ok(), "one is never half");
    }
}
