# weir: what to type. `make` alone prints this list.
# A target that builds, tests or measures installs the Debian packages that it needs and
# this machine lacks, no others (as root; services are neither started nor enabled by it).
# What geo-update needs beyond that, npm, is not installed: it says so.

PREFIX  ?= /usr
DESTDIR ?=
CARGO   ?= cargo
JOBS    ?= -j2
TARGET  ?= $(or $(CARGO_TARGET_DIR),target)
SBIN    := $(DESTDIR)$(PREFIX)/sbin
MAN     := $(DESTDIR)$(PREFIX)/share/man/man1
MAN5    := $(DESTDIR)$(PREFIX)/share/man/man5
BASH    := $(DESTDIR)$(PREFIX)/share/bash-completion/completions
ZSH     := $(DESTDIR)$(PREFIX)/share/zsh/vendor-completions
FISH    := $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
UNIT    := $(DESTDIR)/lib/systemd/system
REALSIDE := $(DESTDIR)/etc/default/weir-real-side
LIB     := $(DESTDIR)$(PREFIX)/lib
INCLUDE := $(DESTDIR)$(PREFIX)/include
PYTHON  := $(LIB)/python3/dist-packages
PROGRAM ?= $(TARGET)/release/weir
LIBRARIES ?= $(dir $(PROGRAM))
DEBUG   := $(LIB)/debug$(PREFIX)/sbin
DEPS    := dist/install-deps.sh
OBJCOPY ?= objcopy
SYSTEMD := test -z "$(DESTDIR)" -a -d /run/systemd/system

.PHONY: geo-update help deps build demo recording test kernels bench reference lint fmt sanitize fuzz mutants install install-ring uninstall uninstall-ring clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' Makefile

deps: ## install what building, tests, fuzzing, benchmarks and the demo need (root)
	@$(DEPS) build demo bench test fuzz

build: ## build what is installed, in release
	@$(DEPS) build
	$(CARGO) build --release --locked $(JOBS) -p weir -p weir-ring -p weir-ring-preload

demo: ## sshd under attack, a pool, rules about programs, in a virtual network (root, under two minutes once built)
	@$(DEPS) build demo
	$(CARGO) build --release --locked $(JOBS) -p weir -p weir-demo
	$(TARGET)/release/weir-demo $(TARGET)/release/weir

recording: ## record the demo for the README (root)
	@$(DEPS) build demo recording
	$(CARGO) build --release --locked $(JOBS) -p weir -p weir-demo
	demo/recording.py $(TARGET)/release/weir-demo $(TARGET)/release/weir docs/images/demo.cast docs/images/demo.svg

test: deps ## every test, those that need root included
	CARGO="$(CARGO)" tests/run.py --workspace --locked $(JOBS) --features weir/fault-points

kernels: deps ## tests/kernels/suite on Linux 5.10, 6.1 and 6.12, booted in qemu (root, an hour a kernel at most)
	tests/kernels/run.sh $(TARGET)

bench: ## the packet path against its limits (root, some minutes)
	@$(DEPS) build bench
	$(CARGO) build --release --locked $(JOBS) -p weir -p weir-bench
	$(TARGET)/release/weir-bench packet

reference: ## write docs/configuration.md anew, from the code
	@$(DEPS) build
	$(CARGO) run --locked $(JOBS) -p weir -- man --markdown docs

lint: deps ## formatting and warnings: Rust, BPF, scripts, the unit; comments and commits
	$(CARGO) fmt --all --check
	@# The fuzz targets' lock file knows the workspace's crates, too.
	$(CARGO) metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null
	$(CARGO) clippy --workspace --all-targets --locked $(JOBS) --features weir/fault-points -- -D warnings
	clang-format --dry-run -Werror bpf/*.h bpf/*/*.[ch]
	@for cc in clang-14 clang-19; do for c in bpf/*/*.bpf.c; do \
		echo "$$cc $$c"; \
		$$cc -target bpf -mcpu=v3 -O2 -g -Wall -Werror -Ibpf -I/usr/include/$$(uname -m)-linux-gnu -c $$c -o /dev/null || exit 1; \
	done; done
	@# Comments, documents that they name, subjects of commits, committed results.
	@# The whole workspace's features, as the tests have them: nothing is compiled twice.
	$(CARGO) test --locked $(JOBS) --features weir/fault-points --workspace --test lint
	shellcheck dist/*.sh .ci/run fuzz/run tests/kernels/*.sh
	@# It wants the units' program in place: one that exists stands in for it.
	@command -v systemd-analyze >/dev/null || { echo "no systemd-analyze: units not verified"; exit 0; }; \
	dir=$$(mktemp -d); for unit in weir.service weir-real-side.service weir-ring-syslog@.service; do \
		sed 's,/usr/sbin/weir,/bin/true,' dist/$$unit >$$dir/$$(echo $$unit | sed 's/@/@x/'); \
	done; \
	said=$$(systemd-analyze verify --man=no $$dir/*.service 2>&1 | grep -E 'weir(-real-side|-ring-syslog@x)?\.service'); \
	rm -r $$dir; test -z "$$said" || { echo "$$said"; exit 1; }

fmt: ## format Rust and BPF
	$(CARGO) fmt --all
	clang-format -i bpf/*.h bpf/*/*.[ch]

# The unsafe parts of the ring. An own directory: other flags, other files.
sanitize: ## the ring's tests under AddressSanitizer
	@$(DEPS) build
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address $(CARGO) test --locked $(JOBS) -p weir-ring \
		--target $$(uname -m)-unknown-linux-gnu --target-dir $(TARGET)/sanitize \
		--test basics --test hostile --test properties

FUZZ_SECONDS ?= 60
fuzz: ## fuzz everything that reads others' text, a minute each
	@$(DEPS) build fuzz
	CARGO="$(CARGO)" JOBS="$(JOBS)" FUZZ_SECONDS=$(FUZZ_SECONDS) fuzz/run

# A tool of one's own, not a dependency: it is built once, below the target directory.
# SHARD=3/20 tries a twentieth.
MUTATED ?= crates/core/src crates/ring/src/protocol.rs crates/events/src crates/config/src crates/sinks/src/config.rs
mutants: ## change the code of MUTATED, a bit at a time: does a test notice? (hours; SHARD=k/n)
	@$(DEPS) build
	test -x $(TARGET)/tools/bin/cargo-mutants || \
		$(CARGO) install cargo-mutants --version 27.1.0 --locked $(JOBS) --root $(TARGET)/tools
	PATH="$(abspath $(TARGET))/tools/bin:$$PATH" $(CARGO) mutants --workspace --jobs 1 --output $(TARGET) \
		$(foreach of,$(MUTATED),-f '$(of)' -f '$(of)/**') --sharding round-robin $(if $(SHARD),--shard $(SHARD))

geo-update: ## refresh the built-in country database (npm), then make build
	@$(DEPS) build
	dist/geo-update.sh
	$(CARGO) test --locked $(JOBS) -p weir-sources --lib -- geo

# The symbols go where gdb and a backtrace look for them, beside a program of a
# sixth of the size.
install: ## install binary, units, default configuration, man pages, completions, ring library
	@test -x $(PROGRAM) || { echo "make build first"; exit 1; }
	@# A name of its own, then one rename: a daemon that starts meanwhile finds
	@# the old program or the new one, whole.
	install -D -m 0755 $(PROGRAM) $(SBIN)/.weir.new
	install -d $(DEBUG)
	$(OBJCOPY) --only-keep-debug $(PROGRAM) $(DEBUG)/weir.debug
	chmod 0644 $(DEBUG)/weir.debug
	$(OBJCOPY) --strip-all --add-gnu-debuglink=$(DEBUG)/weir.debug $(SBIN)/.weir.new
	mv -f $(SBIN)/.weir.new $(SBIN)/weir
	sed 's,/usr/sbin/weir,$(PREFIX)/sbin/weir,' dist/weir.service | install -D -m 0644 /dev/stdin $(UNIT)/weir.service
	sed 's,/usr/sbin/weir,$(PREFIX)/sbin/weir,' dist/weir-ring-syslog@.service | install -D -m 0644 /dev/stdin $(UNIT)/weir-ring-syslog@.service
	sed 's,/usr/sbin/weir,$(PREFIX)/sbin/weir,' dist/weir-real-side.service | install -D -m 0644 /dev/stdin $(UNIT)/weir-real-side.service
	test -e $(REALSIDE) || install -D -m 0644 dist/weir-real-side.default $(REALSIDE)
	test -e $(DESTDIR)/etc/weir/weir.toml || install -D -m 0644 dist/weir.toml $(DESTDIR)/etc/weir/weir.toml
	umask 022 && $(SBIN)/weir man $(MAN) && mkdir -p $(MAN5) && mv -f $(MAN)/weir.toml.5 $(MAN5)/
	$(SBIN)/weir completions bash | install -D -m 0644 /dev/stdin $(BASH)/weir
	$(SBIN)/weir completions zsh | install -D -m 0644 /dev/stdin $(ZSH)/_weir
	$(SBIN)/weir completions fish | install -D -m 0644 /dev/stdin $(FISH)/weir.fish
	@if test -e $(LIBRARIES)/libweir_ring_preload.so; then $(MAKE) --no-print-directory install-ring; \
	else echo "the ring's libraries are not built: not installed"; fi
	@$(SYSTEMD) || exit 0; systemctl daemon-reload; \
	if systemctl --quiet is-active weir; then \
		echo "weir runs: weir check && systemctl restart weir (bans stay in force meanwhile)"; \
	else echo "now: weir check && systemctl enable --now weir"; fi

# For servers that log into a ring, on a machine without weir too. A new file
# each, since servers have the old one mapped.
install-ring:
	install -d $(LIB)/pkgconfig $(INCLUDE) $(PYTHON)
	rm -f $(LIB)/libweir_ring.so.0 $(LIB)/libweir_ring_preload.so
	install -m 0755 $(LIBRARIES)/libweir_ring.so $(LIB)/libweir_ring.so.0
	ln -sf libweir_ring.so.0 $(LIB)/libweir_ring.so
	install -m 0755 $(LIBRARIES)/libweir_ring_preload.so $(LIB)/libweir_ring_preload.so
	install -m 0644 $(LIBRARIES)/libweir_ring.a $(LIB)/libweir_ring.a
	install -m 0644 crates/ring/include/weir_ring.h $(INCLUDE)/weir_ring.h
	version=$$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1); \
	sed -e 's|@PREFIX@|$(PREFIX)|' -e "s|@VERSION@|$$version|" crates/ring/weir_ring.pc.in | \
		install -m 0644 /dev/stdin $(LIB)/pkgconfig/weir_ring.pc
	install -m 0644 crates/ring/python/weir_ring.py $(PYTHON)/weir_ring.py
	@test "$(DESTDIR)$(PREFIX)" != /usr || ldconfig

uninstall-ring:
	rm -f $(LIB)/libweir_ring.so $(LIB)/libweir_ring.so.0 $(LIB)/libweir_ring.a $(LIB)/libweir_ring_preload.so
	rm -f $(LIB)/pkgconfig/weir_ring.pc $(INCLUDE)/weir_ring.h $(PYTHON)/weir_ring.py

uninstall: ## take all of it away; PURGE=1: configuration, database and log files, too
	@test -n "$(DESTDIR)" || dist/withdraw.sh $(SBIN)/weir
	@$(MAKE) --no-print-directory uninstall-ring
	rm -f $(SBIN)/weir $(SBIN)/.weir.new $(DEBUG)/weir.debug $(UNIT)/weir.service $(UNIT)/weir-real-side.service $(UNIT)/weir-ring-syslog@.service $(BASH)/weir $(ZSH)/_weir $(FISH)/weir.fish
	rm -f $(MAN)/weir.1 $(MAN)/weir-*.1 $(MAN5)/weir.toml.5
	@$(SYSTEMD) || exit 0; systemctl daemon-reload; systemctl reset-failed weir weir-real-side 2>/dev/null || true
	@test -z "$(PURGE)" || rm -rf $(DESTDIR)/etc/weir $(REALSIDE) $(DESTDIR)/var/lib/weir $(DESTDIR)/var/log/weir
	@for kept in $(DESTDIR)/etc/weir $(REALSIDE) $(DESTDIR)/var/lib/weir $(DESTDIR)/var/log/weir; do \
		test ! -e $$kept || echo "kept: $$kept (make uninstall PURGE=1 removes it)"; \
	done

clean: ## remove what was built
	$(CARGO) clean
