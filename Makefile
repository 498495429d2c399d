# One word each. `make` alone says which there are.

TARGET := $(or $(CARGO_TARGET_DIR),target)
SAMPLES := $(wildcard bpf/samples/*.bpf.c)
SUITE := $(wildcard bpf/bench/*.bpf.c)
OBJECTS := $(SAMPLES:bpf/samples/%.bpf.c=$(TARGET)/bpf/%.o) $(SUITE:bpf/bench/%.bpf.c=$(TARGET)/bpf/bench/%.o)

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## install what build and tests need and this machine lacks, after saying what
	@scripts/setup test && echo "Everything is there."

demo:  ## build, compile a sample, run it over a capture, show verdicts and counters
	@scripts/setup demo
	cargo build --profile quick -p xway
	@$(MAKE) --no-print-directory $(TARGET)/bpf/count.o
	$(TARGET)/quick/xway run $(TARGET)/bpf/count.o -i bpf/demo/mixed.pcapng --dump-maps

test:  ## everything that must pass; says what could not run on this machine, and why
	@scripts/setup test || echo "Going on: what needs them will be reported as not run."
	@scripts/mounted scripts/test $(TARGET)

lint:  ## format, clippy (of the compiler also for aarch64), documentation, house rules
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
	cargo test -q --workspace --test house
	@scripts/aarch64 --look

samples: $(OBJECTS)  ## compile bpf/samples and bpf/bench into object files

$(TARGET)/bpf/%.o: bpf/samples/%.bpf.c $(wildcard bpf/include/*.h)
	@scripts/samples $(TARGET)/bpf $<
	@echo "$< -> $@"

$(TARGET)/bpf/bench/%.o: bpf/bench/%.bpf.c $(wildcard bpf/include/*.h bpf/bench/*.h)
	@scripts/samples $(TARGET)/bpf/bench $<
	@echo "$< -> $@"

bench:  ## measure; nothing here passes or fails
	cargo bench --workspace

bench-docs:  ## measure and write the tables of docs/performance.md; PARTS="prog helpers techniques compile native dispatch path levels cpu wire map threads memory machine", CPU=n, ROUNDS=7
	cargo build --release -p xway
	@scripts/bench-docs $(TARGET)/release/xway $(or $(PARTS),prog helpers techniques compile native dispatch path levels cpu wire map threads memory machine)

native: $(TARGET)/bench-native/parse $(TARGET)/bench-native/tuple $(TARGET)/bench-native/lines  ## measure two programs compiled for the machine itself, without BPF
	$(TARGET)/bench-native/parse $(CPU)
	$(TARGET)/bench-native/tuple $(CPU)
	$(TARGET)/bench-native/lines $(CPU)

$(TARGET)/bench-native/%: bpf/bench/native/%.c $(SUITE) \
		$(wildcard bpf/include/*.h bpf/bench/*.h bpf/bench/native/*.h bpf/bench/native/bpf/*.h)
	@mkdir -p $(@D)
	$(or $(CLANG),clang) -O3 -Wall -Ibpf/bench/native -Ibpf/include $< -o $@

aarch64:  ## the compiler's tests as aarch64 code under qemu; says what is missing where they cannot run
	@scripts/setup aarch64 || echo "Going on: what is missing will be named."
	@scripts/aarch64

fuzz:  ## every fuzzer for ten minutes; SECONDS_EACH=n for another time
	scripts/fuzz $(or $(SECONDS_EACH),600)

soak:  ## bad wires, swapped programs, ports down and up, queues that move, killed applications: ten minutes; SECONDS_EACH=n for another time
	XWAY_SOAK_SECONDS=$(or $(SECONDS_EACH),600) cargo test --release -q -p xway-bench --test soak -- --nocapture

models:  ## rings, pools, buckets and free lists of maps under every interleaving (loom)
	RUSTFLAGS="--cfg loom" cargo test -q --release --target-dir $(TARGET)/models -p xway-packet --test loom --test loom_rings
	RUSTFLAGS="--cfg loom" cargo test -q --release --target-dir $(TARGET)/models -p xway-maps --test loom

miri:  ## packet memory and rings in the interpreter that finds undefined behaviour (needs a nightly toolchain with miri)
	MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test -q -p xway-packet --lib --test pool --test rings --test adjust

cycles:  ## a thousand loads, replacements and detachments under traffic on each hook; ROUNDS=n (needs root)
	XWAY_ROUNDS=$(or $(ROUNDS),1000) XWAY_SKIP_LOG=/dev/stderr scripts/mounted \
		cargo test -q -p xway-hook -p xway-control --test cycles --test engine_cycles

fuzz-kernel: $(OBJECTS)  ## our verifier and interpreter against the running kernel; MINUTES=n, SEED=n (needs root)
	cargo build --release -p xway-testkit --example fuzz-kernel
	$(TARGET)/release/examples/fuzz-kernel --minutes $(or $(MINUTES),1) --seed $(or $(SEED),1) $(OBJECTS) \
		$(wildcard /usr/lib/*-linux-gnu/bpf/*.o)

# What concerns the kernel: its tests run under another one.
VM_TESTS := -p xway-kernel -p xway-hook -p xway --lib --test conformance --test cycles --test dispatcher --test filter --test forward \
	--test kernel_hook --test kernel_verbs --test programs --test tools --test watching

vm:  ## the tests of the kernel's hook in a virtual machine; KERNEL=folder of an unpacked kernel package, TEST=words of cargo test
	@test -n "$(KERNEL)" || { echo "make vm KERNEL=folder: what a kernel's package was unpacked to"; scripts/vm; exit 2; }
	cargo test --no-run $(or $(TEST),$(VM_TESTS))
	VM_SECONDS=$(or $(VM_SECONDS),3600) scripts/vm $(KERNEL) cargo test --offline --no-fail-fast $(or $(TEST),$(VM_TESTS))

# Two virtio cards on one wire; the driver leaves out copies where memory is the card's by way of the DMA layer.
CARD = -netdev hubport,hubid=1,id=h$(1) -device virtio-net-pci,netdev=h$(1),iommu_platform=on,disable-legacy=on,mac=52:54:00:00:00:0$(1)
ZEROCOPY_TEST := -p xway-port-afxdp --test zero_copy

zerocopy:  ## afxdp: without copies, on two virtio cards in a virtual machine; KERNEL=folder as for vm, Linux 6.13 or newer
	@test -n "$(KERNEL)" || { echo "make zerocopy KERNEL=folder: what a kernel's package was unpacked to"; scripts/vm; exit 2; }
	cargo test --no-run $(ZEROCOPY_TEST)
	XWAY_WIRE=eth0,eth1 VM_QEMU="$(call CARD,1) $(call CARD,2)" scripts/vm $(KERNEL) sh -c \
		'modprobe virtio_net; for card in eth0 eth1; do ip link set $$card up; done; cargo test --offline $(ZEROCOPY_TEST) -- --nocapture'

corpus:  ## foreign programs below DIR=… before our verifier and the running kernel's
	@test -n "$(DIR)" || { echo "make corpus DIR=folder: objects and raw programs of your own"; exit 2; }
	cargo run --release -q -p xway-testkit --example corpus -- $(OPTIONS) $(DIR)

ecosystem:  ## the table of docs/tools.md: the xdp-tools repository's own scripts with its tools and with ours; DIR=its folder, built (needs root)
	@test -n "$(DIR)" || { echo "make ecosystem DIR=folder: the repository of xdp-tools, in which make was run"; exit 2; }
	cargo build --release -p xway
	@scripts/ecosystem $(TARGET)/release/xway $(DIR) $(TOOLS)

install:  ## command, library, header, man pages and completions below PREFIX=/usr/local (DESTDIR= for packages)
	cargo build --release -p xway -p xway-capi
	@scripts/install $(TARGET)/release

bundle:  ## one archive for machines without Rust and clang: static command, compiled samples, man pages, completions, units
	@scripts/bundle

deploy:  ## the bundle onto another machine: HOST=root@name (needs ssh)
	@test -n "$(HOST)" || { echo "make deploy HOST=root@name"; exit 2; }
	@scripts/deploy $(HOST)

clean:  ## remove everything that was built
	cargo clean

.PHONY: help setup demo test lint samples bench bench-docs native aarch64 fuzz soak models miri cycles fuzz-kernel vm zerocopy corpus ecosystem install bundle deploy clean
