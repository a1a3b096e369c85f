//! The functions that `io.aqueduct.flink.Native` declares: each decodes, calls and encodes, and lets nothing unwind.

use std::task::Poll;
use std::time::Duration;

use aqueduct_connector::types::LogicalType;
use aqueduct_connector::{Error, Subtask};
use bytes::Bytes;
use jni::objects::{JByteArray, JClass, JLongArray};
use jni::sys::{jboolean, jint, jlong};
use jni::{Env, EnvUnowned};

use crate::enumerator::{self, Enumerator};
use crate::errors::{Failure, Thrown};
use crate::host::{self, Part, Place};
use crate::logs::{self, Verbosity};
use crate::lookup::Lookup;
use crate::reader::{self, Reader};
use crate::writer::{Goal, Writer};
use crate::{metrics, plan, roundtrip, wire};

/// Runs `f`; an error or a panic of it is thrown in Java.
fn enter<'local, T: Default>(
    mut env: EnvUnowned<'local>,
    class: &JClass<'local>,
    f: impl FnOnce(&mut Env<'local>) -> Result<T, Failure>,
) -> T {
    env.with_env(f).resolve_with::<Thrown, _>(|| class)
}

/// The bytes of an array; null is none.
fn bytes(env: &Env<'_>, array: &JByteArray<'_>) -> Result<Vec<u8>, Failure> {
    if array.is_null() {
        return Ok(Vec::new());
    }
    Ok(env.convert_byte_array(array)?)
}

/// An array of `parts`, one behind the other.
fn array<'local>(env: &mut Env<'local>, parts: &[&[u8]]) -> Result<JByteArray<'local>, Failure> {
    let total: usize = parts.iter().map(|part| part.len()).sum();
    let too_large = |_| Error::data("an array of more than 2 GiB");
    let array = env.new_byte_array(total)?;
    let mut at = 0;
    for part in parts {
        // SAFETY: `u8` and `i8` have the same size and alignment, and every byte is a valid value of both.
        let signed = unsafe { std::slice::from_raw_parts(part.as_ptr().cast::<i8>(), part.len()) };
        array.set_region(env, i32::try_from(at).map_err(too_large)?, signed)?;
        at += part.len();
    }
    Ok(array)
}

/// An array, or null for nothing.
fn answer<'local>(env: &mut Env<'local>, bytes: &Bytes) -> Result<JByteArray<'local>, Failure> {
    if bytes.is_empty() {
        return Ok(JByteArray::default());
    }
    array(env, &[bytes])
}

/// `static native long start(int verbosity)`: starts the library; gives the number of this start.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_aqueduct_flink_Native_start<'local>(
    env: EnvUnowned<'local>,
    class: JClass<'local>,
    verbosity: jint,
) -> jlong {
    enter(env, &class, |_| {
        Ok(host::start(Verbosity::from_number(verbosity))?.cast_signed())
    })
}

/// `static native void stop()`: stops the library; for a thread that ends soon.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_aqueduct_flink_Native_stop<'local>(
    env: EnvUnowned<'local>,
    class: JClass<'local>,
) {
    enter(env, &class, |_| {
        host::stop();
        Ok(())
    });
}

/// `static native int awaitWakeups(long start, long[] handles, long millis)`: fills `handles` with what woke; -1 once
/// stopped.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_aqueduct_flink_Native_awaitWakeups<'local>(
    env: EnvUnowned<'local>,
    class: JClass<'local>,
    start: jlong,
    handles: JLongArray<'local>,
    millis: jlong,
) -> jint {
    enter(env, &class, |env| {
        let mut out = [0; 64];
        let most = handles.len(env)?.min(out.len());
        let limit = Duration::from_millis(millis.try_into().unwrap_or(0));
        let Some(woken) = host::await_wakeups(start.cast_unsigned(), limit, &mut out[..most])
        else {
            return Ok(-1);
        };
        handles.set_region(env, 0, &out[..woken])?;
        Ok(i32::try_from(woken).unwrap_or(0))
    })
}

/// `static native byte[] drainLogs()`
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_aqueduct_flink_Native_drainLogs<'local>(
    env: EnvUnowned<'local>,
    class: JClass<'local>,
) -> JByteArray<'local> {
    enter(env, &class, |env| array(env, &[&logs::drain()]))
}

/// `static native byte[] plan(byte[] table)`
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_aqueduct_flink_Native_plan<'local>(
    env: EnvUnowned<'local>,
    class: JClass<'local>,
    table: JByteArray<'local>,
) -> JByteArray<'local> {
    enter(env, &class, |env| {
        logs::listen();
        let table = bytes(env, &table)?;
        let planned = plan::plan(table)?;
        array(env, &[&planned])
    })
}

/// `static native long open(int kind, byte[] table, byte[] place, byte[] state)`: opens a writer (1), a reader (2), an
/// enumerator (3) or a lookup (4).
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_aqueduct_flink_Native_open<'local>(
    env: EnvUnowned<'local>,
    class: JClass<'local>,
    kind: jint,
    table: JByteArray<'local>,
    place: JByteArray<'local>,
    state: JByteArray<'local>,
) -> jlong {
    enter(env, &class, |env| {
        let table = bytes(env, &table)?;
        let place = read_place(bytes(env, &place)?)?;
        let states = wire::unversioned(bytes(env, &state)?);
        let mut reader = wire::message(&states)?;
        let states = wire::list(&mut reader, 8, |reader| reader.versioned())?;
        reader.finish()?;
        let id = match kind {
            1 => {
                let sink = plan::sink(table)?;
                host::open(place, |context| {
                    Writer::new(sink.as_ref(), context, states).map(Part::Writer)
                })?
            }
            2 => {
                let source = plan::source(table)?;
                host::open(place, |context| {
                    Reader::new(source.as_ref(), context).map(Part::Reader)
                })?
            }
            3 => {
                let source = plan::source(table)?;
                let restored = states.into_iter().next();
                host::open(place, |context| {
                    Enumerator::new(source.as_ref(), context, restored).map(Part::Enumerator)
                })?
            }
            4 => {
                let (lookup, keys) = plan::lookup(table)?;
                host::open(place, |context| {
                    Lookup::new(lookup.as_ref(), context, keys).map(Part::Lookup)
                })?
            }
            _ => return Err(Error::bug("no such kind of a native object").into()),
        };
        Ok(id.cast_signed())
    })
}

fn read_place(bytes: Vec<u8>) -> Result<Place, Failure> {
    let value = wire::unversioned(bytes);
    let mut reader = wire::message(&value)?;
    let place = Place {
        job: wire::text(&mut reader)?,
        operator: wire::text(&mut reader)?,
        subtask: Subtask {
            index: reader.u32()?,
            parallelism: reader.u32()?,
        },
        attempt: reader.u32()?,
        seed: reader.u64()?,
    };
    reader.finish()?;
    Ok(place)
}

/// `static native boolean push(long handle, byte[] rows, int size)`: hands a writer the first `size` bytes of `rows`;
/// whether all rows were taken. If not, poll until they are.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_aqueduct_flink_Native_push<'local>(
    env: EnvUnowned<'local>,
    class: JClass<'local>,
    handle: jlong,
    rows: JByteArray<'local>,
    size: jint,
) -> jboolean {
    enter(env, &class, |env| {
        let size = usize::try_from(size).map_err(|_| Error::bug("a batch of negative size"))?;
        let mut batch = vec![0_u8; size];
        // SAFETY: `u8` and `i8` have the same size and alignment, and every byte is a valid value of both; the slice
        // borrows `batch` mutably for as long as it lives.
        let signed =
            unsafe { std::slice::from_raw_parts_mut(batch.as_mut_ptr().cast::<i8>(), size) };
        rows.get_region(env, 0, signed)?;
        Ok(host::with(handle.cast_unsigned(), |part, cx| {
            let Part::Writer(writer) = part else {
                return Err(other_part());
            };
            writer.push(batch.into())?;
            ready(writer.poll(cx, Goal::Taken))
        })?)
    })
}

/// `static native boolean poll(long handle, int goal)`: whether the goal is reached.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_aqueduct_flink_Native_poll<'local>(
    env: EnvUnowned<'local>,
    class: JClass<'local>,
    handle: jlong,
    goal: jint,
) -> jboolean {
    enter(env, &class, |_| {
        let goal = Goal::from_number(goal)?;
        Ok(host::with(handle.cast_unsigned(), |part, cx| {
            ready(match (part, goal) {
                (Part::Writer(writer), goal) => writer.poll(cx, goal),
                (Part::Reader(reader), Goal::Closed) => reader.poll_close(cx),
                (Part::Enumerator(enumerator), Goal::Closed) => enumerator.poll_close(cx),
                (Part::Lookup(lookup), Goal::Closed) => lookup.poll_close(cx),
                _ => return Err(other_part()),
            })
        })?)
    })
}

fn ready(polled: Poll<aqueduct_connector::Result<()>>) -> aqueduct_connector::Result<bool> {
    match polled {
        Poll::Ready(result) => result.map(|()| true),
        Poll::Pending => Ok(false),
    }
}

fn other_part() -> Error {
    Error::bug("a call of another kind of native object")
}

/// `static native byte[] next(long handle)`: a reader's next output, or null.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_aqueduct_flink_Native_next<'local>(
    env: EnvUnowned<'local>,
    class: JClass<'local>,
    handle: jlong,
) -> JByteArray<'local> {
    enter(env, &class, |env| {
        let mut made = Ok(JByteArray::default());
        host::with(handle.cast_unsigned(), |part, cx| {
            let Part::Reader(reader) = part else {
                return Err(other_part());
            };
            if let Poll::Ready(output) = reader.poll_next(cx) {
                let (header, rows) = output?;
                made = array(env, &[&header, rows]);
            }
            Ok(())
        })?;
        made
    })
}

/// `static native void emitted(long handle, int rows)`
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_aqueduct_flink_Native_emitted<'local>(
    env: EnvUnowned<'local>,
    class: JClass<'local>,
    handle: jlong,
    rows: jint,
) {
    enter(env, &class, |_| {
        let rows = usize::try_from(rows).map_err(|_| Error::bug("less than no rows"))?;
        Ok(host::with(handle.cast_unsigned(), |part, _| {
            let Part::Reader(reader) = part else {
                return Err(other_part());
            };
            reader.emitted(rows);
            Ok(())
        })?)
    });
}

/// `static native byte[] call(long handle, int call, byte[] argument)`: everything that is not done for each batch.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_aqueduct_flink_Native_call<'local>(
    env: EnvUnowned<'local>,
    class: JClass<'local>,
    handle: jlong,
    call: jint,
    argument: JByteArray<'local>,
) -> JByteArray<'local> {
    enter(env, &class, |env| {
        let argument = Bytes::from(bytes(env, &argument)?);
        let answered = host::with(handle.cast_unsigned(), |part, cx| match part {
            Part::Reader(reader) => reader.call(reader::Request::from_number(call)?, argument),
            Part::Enumerator(enumerator) => {
                enumerator.call(cx, enumerator::Request::from_number(call)?, argument)
            }
            Part::Lookup(lookup) => lookup.call(cx, call, argument),
            Part::Writer(_) => Err(other_part()),
        })?;
        answer(env, &answered)
    })
}

/// `static native void free(long handle)`: frees a handle, closed or not.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_aqueduct_flink_Native_free<'local>(
    env: EnvUnowned<'local>,
    class: JClass<'local>,
    handle: jlong,
) {
    enter(env, &class, |_| {
        host::free(handle.cast_unsigned());
        Ok(())
    });
}

/// `static native byte[] metrics(long handle, int known)`: the metrics after the first `known`, then all values.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_aqueduct_flink_Native_metrics<'local>(
    env: EnvUnowned<'local>,
    class: JClass<'local>,
    handle: jlong,
    known: jint,
) -> JByteArray<'local> {
    enter(env, &class, |env| {
        let registry = host::metrics(handle.cast_unsigned())?;
        let known = usize::try_from(known).unwrap_or(0);
        array(env, &[&metrics::encode(&registry, known)])
    })
}

/// `static native byte[] roundTrip(byte[] types, byte[] row)`: the row, read and written anew.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_aqueduct_flink_Native_roundTrip<'local>(
    env: EnvUnowned<'local>,
    class: JClass<'local>,
    types: JByteArray<'local>,
    row: JByteArray<'local>,
) -> JByteArray<'local> {
    enter(env, &class, |env| {
        let types = wire::unversioned(bytes(env, &types)?);
        let mut reader = wire::message(&types)?;
        let texts = wire::list(&mut reader, 4, wire::text)?;
        reader.finish()?;
        let types: Vec<LogicalType> = texts
            .iter()
            .map(|text| LogicalType::parse(text))
            .collect::<Result<_, _>>()
            .map_err(|error| Error::config(error.to_string()))?;
        let row = bytes(env, &row)?;
        array(env, &[&roundtrip::reencode_bytes(&types, &row)?])
    })
}
