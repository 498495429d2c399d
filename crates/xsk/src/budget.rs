//! What all applications together have, and what each user has of it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use xway_abi::Errno;

use crate::Policy;
use crate::server::Refusal;

/// What something costs, or what somebody has.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Amount {
    pub(crate) connections: u64,
    /// Connections without a socket.
    pub(crate) idle: u64,
    pub(crate) sockets: u64,
    /// Bytes.
    pub(crate) memory: u64,
}

impl Amount {
    fn kinds(&mut self) -> [(&mut u64, &'static str); 4] {
        [
            (&mut self.connections, "connections"),
            (&mut self.idle, "connections without a socket"),
            (&mut self.sockets, "sockets"),
            (&mut self.memory, "bytes of packet memory and rings"),
        ]
    }
}

/// Counts what is given out. A user who is not trusted gets at most half of each, so that nobody has everything; of connections without
/// a socket fewer.
#[derive(Debug)]
pub(crate) struct Budget {
    most: Amount,
    /// What one user gets.
    share: Amount,
    trusted: Vec<u32>,
    users: Mutex<HashMap<u32, Amount>>,
}

/// Something that was counted, until it is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    uid: u32,
    amount: Amount,
}

impl Budget {
    pub(crate) fn new(policy: &Policy) -> Budget {
        let most = Amount {
            connections: policy.connections_max as u64,
            idle: policy.connections_max as u64,
            sockets: policy.sockets_total as u64,
            memory: policy.memory_total,
        };
        let mut share = most;
        share.kinds().into_iter().for_each(|(most, _)| *most = (*most / 2).max(1));
        share.idle = share.idle.min(policy.idle_max as u64).max(1);
        Budget { most, share, trusted: policy.trusted_uids.clone(), users: Mutex::default() }
    }

    /// Counts it for a user, or says of what there is not enough.
    pub(crate) fn take(self: &Arc<Budget>, uid: u32, mut amount: Amount) -> Result<Charge, Refusal> {
        let mut users = self.users.lock();
        let own = users.get(&uid).copied().unwrap_or_default();
        let mut all = users.values().fold(Amount::default(), |mut sum, has| {
            let mut has = *has;
            sum.kinds().into_iter().zip(has.kinds()).for_each(|((sum, _), (has, _))| *sum += *has);
            sum
        });
        let (mut next, mut most, mut share) = (own, self.most, self.share);
        let trusted = self.trusted.contains(&uid);
        let kinds = next.kinds().into_iter().zip(all.kinds()).zip(most.kinds().into_iter().zip(share.kinds()));
        let kinds = kinds.zip(amount.kinds()).filter(|(.., (wanted, _))| **wanted > 0);
        for ((((own, what), (all, _)), ((most, _), (share, _))), (wanted, _)) in kinds {
            *own = own.saturating_add(*wanted);
            let share = if trusted { *most } else { *share };
            let why = match (all.saturating_add(*wanted) > *most, *own > share) {
                (true, _) => format!("all applications together may have {most} {what}"),
                (_, true) => format!("the applications of user {uid} may have {share} {what}, of {most} for all"),
                _ => continue,
            };
            return Err((if what.starts_with("bytes") { Errno::ENOMEM } else { Errno::ENOSPC }, why));
        }
        users.insert(uid, next);
        Ok(Charge { budget: self.clone(), uid, amount })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut users = self.budget.users.lock();
        let Some(own) = users.get_mut(&self.uid) else { return };
        own.kinds().into_iter().zip(self.amount.kinds()).for_each(|((own, _), (gone, _))| *own -= *gone);
        if *own == Amount::default() {
            users.remove(&self.uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_more_than_there_is_and_no_stranger_more_than_half() {
        let policy = Policy { sockets_total: 8, memory_total: 1000, connections_max: 2, ..Policy::default() };
        let budget = Arc::new(Budget::new(&policy));
        let sockets = |sockets| Amount { sockets, ..Amount::default() };
        let four = budget.take(5, sockets(4)).unwrap();
        let (errno, why) = budget.take(5, sockets(1)).unwrap_err();
        assert_eq!(errno, Errno::ENOSPC);
        assert!(why.contains("user 5 may have 4 sockets"), "{why}");
        let root = budget.take(0, sockets(4)).unwrap();
        assert!(budget.take(6, sockets(1)).unwrap_err().1.contains("all applications together may have 8 sockets"));
        drop(four);
        let _one = budget.take(5, sockets(1)).unwrap();
        drop(root);
        let _seven = budget.take(0, sockets(7)).unwrap();
        let memory = |memory| Amount { memory, ..Amount::default() };
        assert_eq!(budget.take(0, memory(u64::MAX)).unwrap_err().0, Errno::ENOMEM);
        assert_eq!(budget.take(7, memory(501)).unwrap_err().0, Errno::ENOMEM);
        drop(budget.take(7, memory(500)).unwrap());
        assert!(!budget.users.lock().contains_key(&7));
    }
}
