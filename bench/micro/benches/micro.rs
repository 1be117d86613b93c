//! Nanoseconds of each workload: `cargo bench -p rhizome-micro`.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

fn micro(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("micro");
    for workload in rhizome_micro::all() {
        group.throughput(Throughput::Elements(workload.times as u64));
        group.bench_function(workload.name, |bencher| {
            bencher.iter_batched(
                || workload.prepare(),
                |operation| operation(),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, micro);
criterion_main!(benches);
