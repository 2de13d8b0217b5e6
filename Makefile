# The targets for people and for CI. `make` alone lists them.

CARGO_DENY_VERSION := 0.20.2
CACHE = $${STELLAGE_CACHE_DIR:-$${XDG_CACHE_HOME:-$$HOME/.cache}/stellage}
CARGO_DENY = $(CACHE)/cargo-deny-$(CARGO_DENY_VERSION)
CARGO_CYCLONEDX_VERSION := 0.5.9
CARGO_CYCLONEDX = $(CACHE)/cargo-cyclonedx-$(CARGO_CYCLONEDX_VERSION)
CARGO_ABOUT_VERSION := 0.9.3
CARGO_ABOUT = $(CACHE)/cargo-about-$(CARGO_ABOUT_VERSION)
MDBOOK_VERSION := 0.5.4
MDBOOK = $(CACHE)/mdbook-$(MDBOOK_VERSION)
ACTIONLINT_VERSION := 1.7.12
TARGET = $${CARGO_TARGET_DIR:-target}
VERSION = $$(cargo pkgid --package stellage | sed 's/.*[@\#]//')
COMMIT = $$(git describe --always --dirty --abbrev=40 --exclude '*')
# The date of the commit makes SBOM and image the same whenever they are built.
EPOCH = $$(git log -1 --format=%ct)
IMAGE = localhost/stellage:$(VERSION)
# More than there are integration tests: most of them wait for their turn at a control plane (tests/support/gate.rs).
TEST_THREADS = $${RUST_TEST_THREADS:-1024}

.DEFAULT_GOAL := help
.PHONY: help run test e2e e2e-registry e2e-kubevirt lines lint bench crds chart promised site image notices reproducible sbom screenshots tools browser cargo-deny cargo-cyclonedx cargo-about mdbook

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

run: tools ## Run everything on this machine until Ctrl-C (variables: docs/settings.md)
	@cargo build --release --locked --package stellage --package control-plane
	@exec "$(TARGET)/release/control-plane" run --stop-with-parent --parent $$PPID

# Compile the whole workspace first: alone, control-plane would get other features and be built a second time.
# A backtrace through a runtime hides the message before it. GOGC: a fifth less processor time of each control plane.
test: tools browser ## Run all tests, against a real API server
	@cargo test --locked --workspace --no-run
	@"$(TARGET)/debug/control-plane" build >/dev/null
	@"$(TARGET)/debug/control-plane" helm >/dev/null
	@"$(TARGET)/debug/control-plane" promtool >/dev/null
	@"$(TARGET)/debug/control-plane" kubevirt >/dev/null
	@"$(TARGET)/debug/control-plane" storage >/dev/null
	@RUST_TEST_THREADS=$${RUST_TEST_THREADS:-48} cargo test --locked --workspace --lib --bins
	@cargo test --locked --workspace --doc
	@RUST_BACKTRACE=0 GOGC=400 RUST_TEST_THREADS=$(TEST_THREADS) cargo test --locked --workspace --test '*'

e2e: image ## Try the image and the chart in the cluster of KUBECONFIG (E2E_LOAD, E2E_FROM: e2e/run)
	@E2E_LOAD="$(E2E_LOAD)" E2E_FROM="$(E2E_FROM)" e2e/run

e2e-registry: image ## The same with the chart from a registry, signed and verified
	@E2E_LOAD="$(E2E_LOAD)" e2e/registry

e2e-kubevirt: image ## Take a server with a guest through its life in a cluster with KubeVirt (KUBECONFIG; E2E_LOAD and others: e2e/kubevirt/run)
	@E2E_LOAD="$(E2E_LOAD)" E2E_IMAGE="$(E2E_IMAGE)" E2E_USER="$(E2E_USER)" E2E_CLASS="$(E2E_CLASS)" E2E_NEAR="$(E2E_NEAR)" \
	    E2E_PROMETHEUS="$(E2E_PROMETHEUS)" E2E_SLOW="$(E2E_SLOW)" e2e/kubevirt/run

lines: ## Count the lines of code, of its tests and of the docs, per folder
	@.ci/lines

lint: tools cargo-deny ## Check format, clippy, rustdoc, workflows, licences, duplicate versions, sources, advisories
	@cargo fmt --all --check
	@cargo clippy --locked --workspace --all-targets -- -D warnings
	@RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --workspace --quiet
	@go run github.com/rhysd/actionlint/cmd/actionlint@v$(ACTIONLINT_VERSION) -shellcheck=
	@cargo fetch --locked --quiet
	@"$(CARGO_DENY)/bin/cargo-deny" --offline --locked check bans licenses sources
	@if git -C "$$(ls -d "$${CARGO_HOME:-$$HOME/.cargo}"/advisory-dbs/*/ 2>/dev/null | head -1)/" rev-parse --quiet --verify HEAD >/dev/null 2>&1; then \
	    "$(CARGO_DENY)/bin/cargo-deny" --offline --locked check advisories; \
	else \
	    echo "Advisories were NOT checked: this machine has no advisory database; run '$(CARGO_DENY)/bin/cargo-deny fetch db' to get it."; \
	fi

bench: tools ## Measure the facade, the controllers and webhooks (ARGS: docs/benchmarks.md)
	@cargo bench --locked --bench side_by_side -- $(ARGS)

crds: tools ## Generate crds/ from the Rust types
	@cargo run --quiet --locked -- crds --output-dir crds

chart: tools ## Write what is generated in charts/, and deploy/rbac.yaml
	@STELLAGE_WRITE_CHART=1 cargo test --quiet --locked --workspace --test integration -- chart::files

promised: tools ## Write into tests/promised what v1 promises from the next release on (docs/versions.md)
	@STELLAGE_WRITE_PROMISED=1 cargo test --quiet --locked --workspace --test integration -- versions::

# Links that lead out of docs/ go to the repository.
site: tools mdbook ## Make the site of the documentation in target/site (REPOSITORY: its URL; REF: a tag, branch or commit)
	@REPOSITORY="$${REPOSITORY:-https://example.com/stellage}" REF="$${REF:-$(COMMIT)}" "$(MDBOOK)/bin/mdbook" build

# Linked statically, the program needs no other files.
image: tools notices ## Pack the container image into target/image, without a container engine (IMAGE: its name)
	@STELLAGE_VERSION="$(VERSION) ($(COMMIT))" cargo rustc --release --locked --package stellage --bin stellage -- \
	    -C target-feature=+crt-static -C strip=symbols
	@mkdir -p "$(TARGET)/image"
	@SOURCE_DATE_EPOCH=$(EPOCH) cargo run --quiet --release --locked --package packer -- --name "$(IMAGE)" --commit "$(COMMIT)" \
	    --program "$(TARGET)/release/stellage" --licenses LICENSE --licenses "$(TARGET)/image/THIRD-PARTY.txt" \
	    --output "$(TARGET)/image/stellage.tar"

# cargo-about works without a network, but wants all crates of the lock file, those for other systems too. It reads for minutes.
notices: tools cargo-about ## Write the licences of what others made into target/image/THIRD-PARTY.txt
	@cargo fetch --locked --quiet
	@mkdir -p "$(TARGET)/image"
	@file="$(TARGET)/image/THIRD-PARTY.txt"; \
	    [ -e "$$file" ] && [ -z "$$(find Cargo.lock about.toml about.hbs .ci/notices packer/licenses -newer "$$file")" ] || { \
	    .ci/notices "$(CARGO_ABOUT)/bin/cargo-about" >"$$file.new" && mv "$$file.new" "$$file"; }

reproducible: image ## Build and pack the image again from scratch, and check that it has the same digest
	@sha256sum "$(TARGET)/image/stellage.tar" >"$(TARGET)/image/first"
	@cargo clean --quiet --release
	@$(MAKE) --no-print-directory image
	@sha256sum --check "$(TARGET)/image/first"

# cargo-cyclonedx describes the programs of the other members of the workspace, too.
sbom: tools cargo-cyclonedx ## Write what the program is made of into target/image, as CycloneDX
	@mkdir -p "$(TARGET)/image"
	@SOURCE_DATE_EPOCH=$(EPOCH) "$(CARGO_CYCLONEDX)/bin/cargo-cyclonedx" cyclonedx --quiet --format json --spec-version 1.5 \
	    --describe binaries --no-build-deps
	@mv stellage_bin.cdx.json "$(TARGET)/image/stellage.cdx.json"
	@rm */*_bin.cdx.json

screenshots: tools browser ## Take the pictures of the console in docs/images
	@cargo test --quiet --locked --workspace --test integration -- --ignored browser::screenshots

tools:
	@command -v cargo >/dev/null || { echo "cargo is not in PATH: install Rust 1.95 or newer with rustup" >&2; exit 1; }
	@command -v cc >/dev/null || { echo "cc is not in PATH: install a C compiler (Debian: apt-get install gcc)" >&2; exit 1; }

# For the tests of the console. Where this cannot install it, they say that they were not run.
browser:
	@if ! command -v chromedriver >/dev/null && [ "$$(id -u)" = 0 ] && grep -qs '^ID=debian' /etc/os-release; then \
	    echo "Installing Chromium, once: apt-get install chromium chromium-driver"; \
	    { apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q install --yes --no-install-recommends chromium chromium-driver; } \
	        >/dev/null 2>&1 || echo "That failed; the tests of the console in a browser will not run." >&2; \
	fi

cargo-deny: tools
	@[ -x "$(CARGO_DENY)/bin/cargo-deny" ] || { \
	    echo "Installing cargo-deny $(CARGO_DENY_VERSION) into $(CARGO_DENY), once; this takes some minutes."; \
	    cargo install --quiet --locked cargo-deny@$(CARGO_DENY_VERSION) --root "$(CARGO_DENY)"; }

cargo-cyclonedx: tools
	@[ -x "$(CARGO_CYCLONEDX)/bin/cargo-cyclonedx" ] || { \
	    echo "Installing cargo-cyclonedx $(CARGO_CYCLONEDX_VERSION) into $(CARGO_CYCLONEDX), once; this takes some minutes."; \
	    cargo install --quiet --locked cargo-cyclonedx@$(CARGO_CYCLONEDX_VERSION) --root "$(CARGO_CYCLONEDX)"; }

cargo-about: tools
	@[ -x "$(CARGO_ABOUT)/bin/cargo-about" ] || { \
	    echo "Installing cargo-about $(CARGO_ABOUT_VERSION) into $(CARGO_ABOUT), once; this takes some minutes."; \
	    cargo install --quiet --locked cargo-about@$(CARGO_ABOUT_VERSION) --features cli --root "$(CARGO_ABOUT)"; }

mdbook: tools
	@[ -x "$(MDBOOK)/bin/mdbook" ] || { \
	    echo "Installing mdbook $(MDBOOK_VERSION) into $(MDBOOK), once; this takes some minutes."; \
	    cargo install --quiet --locked mdbook@$(MDBOOK_VERSION) --root "$(MDBOOK)"; }
