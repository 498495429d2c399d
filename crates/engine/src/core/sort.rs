//! From verdicts to targets.

use std::vec::Drain;

use xway_abi::{Errno, Verdict};
use xway_maps::Guard;
use xway_packet::{Burst, Frame, Redirect, Tally};

use super::targets::{Goal, Reach};
use super::{Core, EYES, Site, send};
use crate::event::EventKind;
use crate::lane::Pass;
use crate::outbox::Why;
use crate::socket::SocketEntry;
use crate::{Results, Sent};

/// Where the last frame of the burst went that was redirected to one place.
pub(super) struct Run {
    goal: Redirect,
    to: RunTo,
}

/// By position among those that the worker knows.
enum RunTo {
    /// A port, without a program on the way out, that sends frames of one buffer up to this length.
    Port { number: usize, frame_max: u32 },
    /// A worker.
    Cpu(usize),
    /// A socket, bound to this interface and queue.
    Socket { at: usize, bound: (u32, u32) },
}

impl Run {
    /// Whether another frame goes the same way: the goal is the same, and so is what may differ from frame to frame.
    #[inline]
    fn fits(&self, frame: &Frame) -> bool {
        self.goal == frame.redirect()
            && match self.to {
                RunTo::Port { frame_max, .. } => !frame.has_frags() && frame.len() <= frame_max as usize,
                RunTo::Cpu(_) => true,
                RunTo::Socket { bound, .. } => bound == (frame.ingress_ifindex(), frame.rx_queue()),
            }
    }
}

impl Core {
    /// Gives each frame back to the pool or puts it where its verdict sends it. Frames in a row with one verdict go together: what
    /// is dropped, transmitted or passed is decided once for all of them.
    pub(super) fn sort(&mut self, site: Site, burst: &mut Burst, guard: &Guard) {
        let mut results = std::mem::take(&mut self.results);
        results.complete(burst.len());
        self.run = None;
        let (mut verdicts, mut bytes) = ([0; 5], [0; 5]);
        let mut home = Tally::default();
        let mut frames = burst.drain();
        for run in results.rets().chunk_by(|a, b| a == b) {
            let (ret, count) = (run[0], run.len());
            let first = results.rets().len() - frames.len();
            let verdict = match Verdict::from_ret(ret) {
                // What came over a CPUMAP has no port to be bounced from; Linux warns of an invalid action too.
                Some(Verdict::Tx) if matches!(site, Site::Cpu { .. }) => None,
                verdict => verdict,
            };
            if let Some(verdict) = verdict {
                let run = &frames.as_slice()[..count];
                verdicts[verdict as usize] += count as u64;
                bytes[verdict as usize] += run.iter().map(|frame| frame.total_len() as u64).sum::<u64>();
            }
            match (verdict, site) {
                (Some(Verdict::Drop), _) if !EYES || self.sampled == 0 => {
                    self.pools[self.source.pool].release_run(&mut frames, count, &mut home);
                }
                (Some(Verdict::Tx), Site::Lane(at)) => self.queue_run(at, Why::Tx, &mut frames, count),
                (Some(Verdict::Pass), _) => self.pass_run(site, &mut frames, count),
                (Some(Verdict::Redirect), _) => self.redirect_run(site, first, &results, &mut frames, count, guard),
                _ => {
                    for (index, frame) in (first..).zip(frames.by_ref().take(count)) {
                        if verdict != Some(Verdict::Drop) {
                            self.stopped(site, verdict, ret, index, &results, &frame);
                        }
                        self.discard(site, index, ret, &results, frame, &mut home);
                    }
                }
            }
        }
        drop(frames);
        self.pools[self.source.pool].settle(home);
        self.sampled = 0;
        let meters = &self.source.meters;
        meters.verdicts.iter().zip(verdicts).for_each(|(count, number)| count.add(number));
        meters.verdict_bytes.iter().zip(bytes).for_each(|(count, number)| count.add(number));
        self.results = results;
    }

    /// A frame has ended here.
    #[inline]
    fn discard(&mut self, site: Site, index: usize, ret: u64, results: &Results, frame: Frame, home: &mut Tally) {
        let frame = match !EYES || self.sampled >> index & 1 == 0 {
            true => Some(frame),
            false => self.tap_dropped(site, index, ret, results, frame),
        };
        if let Some(frame) = frame {
            self.pools[self.source.pool].release_into(frame, home);
        }
    }

    /// Puts a frame into the burst for a port.
    fn queue(&mut self, number: usize, why: Why, frame: Frame) {
        // A burst per target and reason has room for every frame of the one that was received, but not for those of a device map
        // that names one port many times.
        if let Err(frame) = self.outbox(number).burst(why).push(frame) {
            self.pools[self.source.pool].release(frame);
            let errno = if why == Why::Copy { Errno::ENOSPC } else { Errno::ENOBUFS };
            self.account(why, Sent::none(1, errno));
        }
    }

    /// Puts the next `count` frames into the burst for a port.
    fn queue_run(&mut self, number: usize, why: Why, frames: &mut Drain<'_, Frame>, count: usize) {
        let queued = self.outbox(number).burst(why).append(frames, count);
        frames.take(count - queued).for_each(|frame| self.queue(number, why, frame));
    }

    /// Sends the next `count` frames to the stack side of where they came in.
    fn pass_run(&mut self, site: Site, frames: &mut Drain<'_, Frame>, count: usize) {
        match site {
            Site::Lane(at) if matches!(self.lanes[at].pass, Pass::Stack) => {
                self.queue_run(at, Why::Pass, frames, count);
            }
            _ => frames.take(count).for_each(|frame| self.pass(site, frame)),
        }
    }

    fn pass(&mut self, site: Site, frame: Frame) {
        let (number, pass) = match site {
            Site::Lane(at) => (at, self.lanes[at].pass),
            Site::Cpu { .. } => match self.targets.reach(frame.ingress_ifindex()) {
                Some(reach) => (reach.number, reach.pass),
                None => (0, Pass::Missing),
            },
        };
        match pass {
            Pass::Stack => self.queue(number, Why::Pass, frame),
            Pass::Out(number) if frame.has_frags() && !self.targets.takes_parts(number) => {
                self.pools[self.source.pool].release(frame);
                self.source.meters.pass_lost.add(Errno::EOPNOTSUPP, 1);
            }
            Pass::Out(number) => self.queue(number, Why::PassOut, frame),
            Pass::Missing => {
                self.pools[self.source.pool].release(frame);
                self.source.meters.pass_lost.add(Errno::ENODEV, 1);
            }
            Pass::Drop => {
                self.pools[self.source.pool].release(frame);
                self.source.meters.pass_drop.add(1);
            }
        }
    }

    /// The program was stopped, or gave up, or returned what is no verdict.
    #[cold]
    fn stopped(
        &mut self,
        site: Site,
        verdict: Option<Verdict>,
        ret: u64,
        index: usize,
        results: &Results,
        frame: &Frame,
    ) {
        let meters = &self.source.meters;
        let kind = if verdict.is_some() {
            let fault = results.fault(index);
            meters.exceptions.add(u64::from(fault.is_some()));
            EventKind::Exception { fault: fault.map(|fault| &**fault) }
        } else {
            meters.invalid.add(1);
            meters.invalid_bytes.add(frame.total_len() as u64);
            meters.invalid_codes.add(ret as u32, 1);
            EventKind::InvalidAction { code: ret as u32 }
        };
        let position = results.position(index);
        let name = match site {
            Site::Lane(at) => self.hooks[self.lanes[at].hook].name(position),
            Site::Cpu { program } => program.and_then(|at| self.extras.hook(at)).map_or("", |hook| hook.name(0)),
        };
        self.events.tell(name, Some(frame), kind);
    }

    /// Sends the next `count` frames, from the one with number `index` on, on their way. Of those in a row that go to one place the
    /// first is looked up.
    fn redirect_run(
        &mut self,
        site: Site,
        mut index: usize,
        results: &Results,
        frames: &mut Drain<'_, Frame>,
        count: usize,
        guard: &Guard,
    ) {
        let end = index + count;
        while index < end {
            if let Some(run) = &self.run {
                let same = frames.as_slice()[..end - index].iter().take_while(|frame| run.fits(frame)).count();
                index += self.run_burst().map_or(0, |burst| burst.append(frames, same));
            }
            // The first of other ones, or for another place, or one that its burst has no room for.
            if index < end
                && let Some(frame) = frames.next()
            {
                self.redirect(site, index, results, frame, guard);
                index += 1;
            }
        }
    }

    /// Sends a redirected frame on its way: to a port, many ports, another worker or a socket.
    fn redirect(&mut self, site: Site, index: usize, results: &Results, mut frame: Frame, guard: &Guard) {
        // One that is alone runs what it was given, with its maps.
        if self.stays {
            self.targets.meet(frame.redirect());
        }
        match self.targets.resolve(&frame, guard) {
            Ok(Goal::Port(exit)) => {
                let program = exit.program.and_then(|program| self.extras.position(program, self.number));
                let (number, ifindex) = (exit.number, exit.ifindex);
                if program.is_none()
                    && let Some(&Reach { frame_max, .. }) = self.targets.reach(ifindex)
                {
                    self.follow(Run { goal: frame.redirect(), to: RunTo::Port { number, frame_max } });
                }
                self.leave(number, ifindex, program, Why::Redirect, frame);
            }
            Ok(Goal::Ports { map, except }) => {
                let mut fanout = std::mem::take(&mut self.fanout);
                fanout.clear();
                let (extras, number) = (&mut self.extras, self.number);
                self.targets.each_port(map, except, &frame, guard, &mut |exit| {
                    let program = exit.program.and_then(|program| extras.position(program, number));
                    fanout.push((exit.number, exit.ifindex, program));
                });
                match fanout.split_first() {
                    None => self.refused(site, index, results, &frame, Errno::ENOENT),
                    Some(_) if fanout.iter().filter(|target| self.shares(target)).count() > 1 => {
                        self.share_out(&fanout, frame);
                        self.fanout = fanout;
                        return;
                    }
                    Some((&(number, ifindex, program), others)) => {
                        for &(number, ifindex, program) in others {
                            match self.pools[self.source.pool].copy(&frame) {
                                Ok(copy) => self.leave(number, ifindex, program, Why::Copy, copy),
                                Err(_) => self.account(Why::Copy, Sent::none(1, Errno::ENOMEM)),
                            }
                        }
                        self.leave(number, ifindex, program, Why::Redirect, frame);
                        self.fanout = fanout;
                        return;
                    }
                }
                self.fanout = fanout;
                self.pools[self.source.pool].release(frame);
            }
            Ok(Goal::Cpu { map_id, cpu, qsize }) => {
                let goal = frame.redirect();
                match self.hand_to_cpu(map_id, cpu, qsize, frame) {
                    Ok(at) => self.follow(Run { goal, to: RunTo::Cpu(at) }),
                    Err((back, errno)) => {
                        self.refused(site, index, results, &back, errno);
                        self.pools[self.source.pool].release(back);
                    }
                }
            }
            Ok(Goal::Socket(socket)) => {
                let target = socket.as_any().downcast_ref::<SocketEntry>().map(SocketEntry::target);
                let errno = match target.map(|target| (target, target.bound_to())) {
                    None => Errno::EOPNOTSUPP,
                    Some((_, bound)) if bound != (frame.ingress_ifindex(), frame.rx_queue()) => Errno::EINVAL,
                    Some((target, bound)) => {
                        let at = send::socket_out(&mut self.sockets, target);
                        self.follow(Run { goal: frame.redirect(), to: RunTo::Socket { at, bound } });
                        match self.sockets[at].burst.push(frame) {
                            Ok(()) => return,
                            Err(back) => {
                                frame = back;
                                Errno::ENOSPC
                            }
                        }
                    }
                };
                self.refused(site, index, results, &frame, errno);
                self.pools[self.source.pool].release(frame);
            }
            Err(errno) => {
                self.refused(site, index, results, &frame, errno);
                self.pools[self.source.pool].release(frame);
            }
        }
    }

    /// Where a frame went that the next one may follow.
    #[inline]
    fn follow(&mut self, run: Run) {
        self.run = self.looks_up_runs.then_some(run);
    }

    /// The burst that the frame before went into.
    #[inline]
    fn run_burst(&mut self) -> Option<&mut Burst> {
        Some(match self.run.as_ref()?.to {
            RunTo::Port { number, .. } => self.outbox(number).burst(Why::Redirect),
            RunTo::Cpu(at) => &mut self.cpu_outs[at].burst,
            RunTo::Socket { at, .. } => &mut self.sockets[at].burst,
        })
    }

    /// Whether a frame can go out there without being the port's own: the port is this worker's, only reads what it sends, and no
    /// program looks at it on the way.
    fn shares(&self, &(number, _, program): &(usize, u32, Option<usize>)) -> bool {
        program.is_none() && self.lanes.get(number).is_some_and(|lane| lane.port.shares())
    }

    /// A broadcast to several ports that only read: they send the one frame, the others get copies of it.
    fn share_out(&mut self, targets: &[(usize, u32, Option<usize>)], frame: Frame) {
        let frame = frame.share();
        // Counted as one redirect and its copies, whoever gets which.
        let mut why = Why::Redirect;
        for target in targets {
            let &(number, ifindex, program) = target;
            if self.shares(target) {
                if self.outbox(number).share(why, frame.clone()).is_err() {
                    self.account(why, Sent::none(1, Errno::ENOSPC));
                }
            } else {
                match self.pools[self.source.pool].copy(&frame) {
                    Ok(copy) => self.leave(number, ifindex, program, why, copy),
                    Err(_) => self.account(why, Sent::none(1, Errno::ENOMEM)),
                }
            }
            why = Why::Copy;
        }
    }

    /// Puts a frame into the burst for a port, or for the program that looks at it on its way there.
    fn leave(&mut self, number: usize, ifindex: u32, program: Option<usize>, why: Why, frame: Frame) {
        let Some(program) = program else { return self.queue(number, why, frame) };
        if let Err(frame) = self.extras.group(program, number, ifindex, why).push(frame) {
            self.pools[self.source.pool].release(frame);
            self.account(why, Sent::none(1, Errno::ENOSPC));
        }
    }

    /// A frame cannot be redirected.
    #[cold]
    fn refused(&mut self, site: Site, index: usize, results: &Results, frame: &Frame, errno: Errno) {
        self.source.meters.redirect_err.add(errno, 1);
        let kind = EventKind::RedirectError { errno, target: frame.redirect() };
        let name = match site {
            Site::Lane(at) => self.hooks[self.lanes[at].hook].name(results.position(index)),
            Site::Cpu { program } => program.and_then(|at| self.extras.hook(at)).map_or("", |hook| hook.name(0)),
        };
        self.events.tell(name, Some(frame), kind);
    }

    /// Frames could not be handed to the target that they were sorted to.
    #[cold]
    pub(super) fn redirect_lost(&mut self, site: Site, target: Redirect, errno: Errno, count: usize) {
        self.source.meters.redirect_err.add(errno, count as u64);
        let kind = EventKind::RedirectError { errno, target };
        let name = match site {
            Site::Lane(at) => self.hooks[self.lanes[at].hook].name(0),
            Site::Cpu { program } => program.and_then(|at| self.extras.hook(at)).map_or("", |hook| hook.name(0)),
        };
        self.events.tell(name, None, kind);
    }
}
