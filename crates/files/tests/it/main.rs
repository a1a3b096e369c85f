//! The sources, driven by hand as a host drives them, over real files.

mod conformance;
mod files;
mod generator;
mod host;
mod reference;
