//! Lets the library see the pairs of sockets that are made in it: `src/sockets.rs` says why.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap=socketpair");
    }
}
