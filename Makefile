# weir: what to type. `make` alone prints this list.
# Everything that a fresh Debian machine lacks is installed by `make deps`
# (as root; services are neither started nor enabled by it).

PREFIX  ?= /usr
DESTDIR ?=
CARGO   ?= cargo
JOBS    ?= -j2
TARGET  ?= $(or $(CARGO_TARGET_DIR),target)
SBIN    := $(DESTDIR)$(PREFIX)/sbin
MAN     := $(DESTDIR)$(PREFIX)/share/man/man1
BASH    := $(DESTDIR)$(PREFIX)/share/bash-completion/completions
ZSH     := $(DESTDIR)$(PREFIX)/share/zsh/vendor-completions
FISH    := $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
UNIT    := $(DESTDIR)/lib/systemd/system

.PHONY: help deps build demo test bench lint fmt fuzz install uninstall clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' Makefile

deps: ## install what building, tests and the demo need (root)
	@dist/install-deps.sh

build: deps ## build the release binaries
	$(CARGO) build --release --locked $(JOBS) -p weir -p weir-bench

demo: build ## a real sshd under attack, in a virtual network (root, about a minute)
	$(CARGO) build --release --locked $(JOBS) -p weir-demo
	$(TARGET)/release/weir-demo $(TARGET)/release/weir

test: deps ## every test, those that need root included
	$(CARGO) test --workspace --locked $(JOBS) --features weir/fault-points

bench: build ## the packet path against its limits (root, some minutes)
	$(TARGET)/release/weir-bench packet

lint: deps ## formatting and warnings, Rust and BPF
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked $(JOBS) --features weir/fault-points -- -D warnings
	clang-format --dry-run -Werror bpf/*.c bpf/*.h
	@for cc in clang-14 clang-19; do for c in bpf/*.bpf.c; do \
		echo "$$cc $$c"; \
		$$cc -target bpf -O2 -g -Wall -Werror -I/usr/include/$$(uname -m)-linux-gnu -c $$c -o /dev/null || exit 1; \
	done; done

fmt: ## format Rust and BPF
	$(CARGO) fmt --all
	clang-format -i bpf/*.c bpf/*.h

FUZZ_SECONDS ?= 60
fuzz: deps ## fuzz everything that reads others' text, a minute each
	@command -v cargo-fuzz >/dev/null || $(CARGO) install --locked cargo-fuzz
	@for target in log_line config api address ring; do \
		RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Clink-arg=-Wl,--warn-unresolved-symbols \
		$(CARGO) fuzz run -s none $$target -- -max_total_time=$(FUZZ_SECONDS) -timeout=10 -print_final_stats=0 || exit 1; \
	done

install: ## install binary, unit, default configuration, man pages, completions
	@test -x $(TARGET)/release/weir || { echo "make build first"; exit 1; }
	install -D -m 0755 $(TARGET)/release/weir $(SBIN)/weir
	install -D -m 0644 dist/weir.service $(UNIT)/weir.service
	test -e $(DESTDIR)/etc/weir/weir.toml || install -D -m 0644 dist/weir.toml $(DESTDIR)/etc/weir/weir.toml
	install -d $(MAN) $(BASH) $(ZSH) $(FISH)
	$(SBIN)/weir man $(MAN)
	$(SBIN)/weir completions bash > $(BASH)/weir
	$(SBIN)/weir completions zsh > $(ZSH)/_weir
	$(SBIN)/weir completions fish > $(FISH)/weir.fish
	@test -n "$(DESTDIR)" || ! command -v systemctl >/dev/null || systemctl daemon-reload || true
	@echo "now: weir check && systemctl enable --now weir"

uninstall: ## take the program away; configuration and database stay
	rm -f $(SBIN)/weir $(UNIT)/weir.service $(MAN)/weir*.1 $(BASH)/weir $(ZSH)/_weir $(FISH)/weir.fish

clean: ## remove what was built
	$(CARGO) clean
