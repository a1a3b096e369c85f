//! The embedded executor: graph, tasks, barriers, checkpoints, restart.
