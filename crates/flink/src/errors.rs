//! Errors on their way to Java: an `AqueductException` with the kind, the message and every cause.

use std::any::Any;

use aqueduct_connector::options::ConfigError;
use aqueduct_connector::state::StateError;
use aqueduct_connector::{Error, ErrorKind};
use aqueduct_tokio::panic_text;
use jni::errors::ErrorPolicy;
use jni::objects::{JClass, JThrowable, JValue};
use jni::{Env, jni_sig, jni_str};

/// Why a call from Java failed.
pub(crate) enum Failure {
    /// The connector, or its host here, says no.
    Connector(Error),
    /// Java said no: an array of the wrong size, no memory, an exception under way.
    Java(jni::errors::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Connector(error)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        // Its text is the whole of it; as a cause it would be printed twice.
        Self::Connector(Error::config(error.to_string()))
    }
}

impl From<StateError> for Failure {
    fn from(error: StateError) -> Self {
        Self::Connector(error.into())
    }
}

impl From<jni::errors::Error> for Failure {
    fn from(error: jni::errors::Error) -> Self {
        Self::Java(error)
    }
}

/// How `AqueductException.Kind` numbers the kinds: by their order there.
pub(crate) const fn kind_code(kind: ErrorKind) -> i32 {
    match kind {
        ErrorKind::Config => 0,
        ErrorKind::State => 1,
        ErrorKind::Data => 2,
        ErrorKind::Io => 3,
        ErrorKind::User => 4,
        // Also what a later version of the contract may add: nothing is known of it here.
        _ => 5,
    }
}

/// The error that a panic becomes.
pub(crate) fn panicked(payload: &(dyn Any + Send)) -> Error {
    Error::bug(format!(
        "bug in aqueduct, please report it: panicked: {}",
        panic_text(payload)
    ))
}

/// Throws what `Native.failure(kind, report)` makes of an error or a panic.
pub(crate) struct Thrown;

impl<T: Default> ErrorPolicy<T, Failure> for Thrown {
    type Captures<'local: 'method, 'method> = &'method JClass<'local>;

    fn on_error<'local: 'method, 'method>(
        env: &mut Env<'local>,
        class: &mut Self::Captures<'local, 'method>,
        failure: Failure,
    ) -> jni::errors::Result<T> {
        match failure {
            Failure::Connector(error) => throw(env, class, &error),
            // Java's own exception says more than its echo.
            Failure::Java(_) if env.exception_check() => Ok(()),
            Failure::Java(error) => throw(
                env,
                class,
                &Error::bug(format!("bug in aqueduct, please report it: {error}")),
            ),
        }?;
        Ok(T::default())
    }

    fn on_panic<'local: 'method, 'method>(
        env: &mut Env<'local>,
        class: &mut Self::Captures<'local, 'method>,
        payload: Box<dyn Any + Send + 'static>,
    ) -> jni::errors::Result<T> {
        throw(env, class, &panicked(payload.as_ref()))?;
        Ok(T::default())
    }
}

fn throw<'local>(
    env: &mut Env<'local>,
    class: &JClass<'local>,
    error: &Error,
) -> jni::errors::Result<()> {
    if env.exception_check() {
        return Ok(());
    }
    let report = env.new_string(error.report())?;
    let throwable = env
        .call_static_method(
            class,
            jni_str!("failure"),
            jni_sig!("(ILjava/lang/String;)Ljava/lang/RuntimeException;"),
            &[
                JValue::Int(kind_code(error.kind())),
                JValue::Object(&report),
            ],
        )?
        .l()?;
    let throwable = env.cast_local::<JThrowable>(throwable)?;
    // Its result is the exception now under way, which is what we want.
    let _ = env.throw(throwable);
    Ok(())
}
