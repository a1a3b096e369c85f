package io.aqueduct.flink;

import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Runs native calls on a thread of their own that ends with them.
 *
 * <p>A native library stays mapped for as long as a thread lives that has thread-locals of it to clean up. Threads of tasks
 * end with the task; the threads that plan jobs, run the job manager or its dispatcher do not, so they call the library by
 * this detour, and the class loader of a job that is over can go.
 */
final class ShortThread {

    private ShortThread() {}

    /** Runs {@code work} and waits for it. */
    static <T> T call(String name, Callable<T> work) {
        FutureTask<T> task = start(name, work);
        try {
            return task.get();
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted while waiting for " + name, error);
        } catch (ExecutionException error) {
            throw rethrown(error);
        }
    }

    /** Runs {@code work} and waits for it for at most {@code millis}, whoever interrupts. False if it still runs. */
    static boolean runWithin(String name, long millis, Runnable work) {
        FutureTask<Void> task = start(name, () -> {
            work.run();
            return null;
        });
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millis);
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    task.get(until - System.nanoTime(), TimeUnit.NANOSECONDS);
                    return true;
                } catch (InterruptedException error) {
                    interrupted = true;
                } catch (TimeoutException error) {
                    return false;
                } catch (ExecutionException error) {
                    throw rethrown(error);
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private static <T> FutureTask<T> start(String name, Callable<T> work) {
        FutureTask<T> task = new FutureTask<>(work);
        Thread thread = new Thread(task, name);
        thread.setDaemon(true);
        thread.setContextClassLoader(ShortThread.class.getClassLoader());
        thread.start();
        return task;
    }

    private static RuntimeException rethrown(ExecutionException error) {
        Throwable cause = error.getCause();
        if (cause instanceof Error) {
            throw (Error) cause;
        }
        return cause instanceof RuntimeException ? (RuntimeException) cause : new IllegalStateException(cause);
    }
}
