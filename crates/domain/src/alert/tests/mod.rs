//! Property tests: any history of samples, against a reference that looks at all samples each time; and the limits of the monitor.

mod histories;
