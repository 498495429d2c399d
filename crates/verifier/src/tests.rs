//! Whole programs, written as text, with the verdict they must get.

mod basics;
mod calls;
mod graphs;
mod guesses;
mod hostile;
mod linux_rules;
mod loops;
mod numbers;
mod packets;
mod soundness;
