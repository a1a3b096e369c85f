//! What `io.aqueduct.flink.NativeLibrary` asks the library about itself, right after it was loaded.

use jni::EnvUnowned;
use jni::errors::ThrowRuntimeExAndDefault;
use jni::objects::{JClass, JString};

/// The version of the library. A jar holds classes and a library of one version; Java compares the two, because a
/// class path with two of our jars can mix them.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// `static native String version()`.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_aqueduct_flink_NativeLibrary_version<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
) -> JString<'local> {
    env.with_env(|env| env.new_string(VERSION))
        .resolve::<ThrowRuntimeExAndDefault>()
}
