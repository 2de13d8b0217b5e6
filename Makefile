# The targets for people and for CI. `make` alone lists them.

CARGO_DENY_VERSION := 0.20.2
CACHE = $${STELLAGE_CACHE_DIR:-$${XDG_CACHE_HOME:-$$HOME/.cache}/stellage}
CARGO_DENY = $(CACHE)/cargo-deny-$(CARGO_DENY_VERSION)
TARGET = $${CARGO_TARGET_DIR:-target}
# Most tests spend most of their time waiting.
TEST_THREADS = $${RUST_TEST_THREADS:-$$(( $$(getconf _NPROCESSORS_ONLN) * 2 + 1 ))}

.DEFAULT_GOAL := help
.PHONY: help run test lint bench crds chart tools cargo-deny

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' Makefile

run: tools ## Run everything on this machine until Ctrl-C (variables: docs/settings.md)
	@cargo build --release --locked --package stellage --package control-plane
	@exec "$(TARGET)/release/control-plane" run --stop-with-parent --parent $$PPID

# Compile the whole workspace first: alone, control-plane would get other features and be built a second time.
test: tools ## Run all tests, against a real API server
	@cargo test --locked --workspace --no-run
	@"$(TARGET)/debug/control-plane" build >/dev/null
	@"$(TARGET)/debug/control-plane" helm >/dev/null
	@"$(TARGET)/debug/control-plane" promtool >/dev/null
	@RUST_TEST_THREADS=$(TEST_THREADS) cargo test --locked --workspace

lint: tools cargo-deny ## Check format, clippy, rustdoc, licences, duplicate versions, sources, advisories
	@cargo fmt --all --check
	@cargo clippy --locked --workspace --all-targets -- -D warnings
	@RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --workspace --quiet
	@cargo fetch --locked --quiet
	@"$(CARGO_DENY)/bin/cargo-deny" --offline --locked check bans licenses sources
	@if [ -d "$${CARGO_HOME:-$$HOME/.cargo}/advisory-dbs" ]; then \
	    "$(CARGO_DENY)/bin/cargo-deny" --offline --locked check advisories; \
	else \
	    echo "Advisories were NOT checked: this machine has no advisory database; run '$(CARGO_DENY)/bin/cargo-deny fetch db' to get it."; \
	fi

bench: tools ## Measure the facade, the controllers and webhooks (ARGS: docs/benchmarks.md)
	@cargo bench --locked --bench side_by_side -- $(ARGS)

crds: tools ## Generate crds/ from the Rust types
	@cargo run --quiet --locked -- crds --output-dir crds

chart: tools ## Write what is generated in charts/stellage, and deploy/rbac.yaml
	@STELLAGE_WRITE_CHART=1 cargo test --quiet --locked --workspace --test integration -- a_chart::files

tools:
	@command -v cargo >/dev/null || { echo "cargo is not in PATH: install Rust 1.95 or newer with rustup" >&2; exit 1; }
	@command -v cc >/dev/null || { echo "cc is not in PATH: install a C compiler (Debian: apt-get install gcc)" >&2; exit 1; }

cargo-deny: tools
	@[ -x "$(CARGO_DENY)/bin/cargo-deny" ] || { \
	    echo "Installing cargo-deny $(CARGO_DENY_VERSION) into $(CARGO_DENY), once; this takes some minutes."; \
	    cargo install --quiet --locked cargo-deny@$(CARGO_DENY_VERSION) --root "$(CARGO_DENY)"; }
