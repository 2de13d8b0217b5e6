# The image of `make image`, for who has a container engine and no Rust: `docker build --build-arg COMMIT=$(git rev-parse HEAD) .`
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
ARG COMMIT=unknown
# Linked statically: what follows needs nothing but the program.
RUN version=$(cargo pkgid --package stellage | sed 's/.*[@#]//') \
    && STELLAGE_VERSION="$version ($COMMIT)" cargo rustc --release --locked --package stellage --bin stellage -- \
        -C target-feature=+crt-static -C strip=symbols
RUN make notices

FROM scratch
ARG COMMIT=unknown
LABEL org.opencontainers.image.title=stellage \
      org.opencontainers.image.version=0.1.0 \
      org.opencontainers.image.revision=$COMMIT \
      org.opencontainers.image.licenses=Apache-2.0
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /src/LICENSE /src/target/image/THIRD-PARTY.txt /licenses/
COPY --from=build /src/target/release/stellage /stellage
USER 65532:65532
ENTRYPOINT ["/stellage"]
