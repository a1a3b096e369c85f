//! Simulated Pub/Sub, seen by an independent client: the generated stubs over a tonic channel.

mod admin;
mod delivery;
mod faults;
mod floods;
mod leases;
mod publishing;
mod streams;
mod support;
