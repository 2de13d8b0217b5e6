# Sourced by the end-to-end tests, from the folder of the project.
set -euo pipefail
: "${E2E_LOAD:?set it to the command that brings an archive with an image into the cluster; see the head of $0}"

target=$(realpath "${CARGO_TARGET_DIR:-target}")
images=$target/image
PATH=$target/release:$PATH
HELM=${HELM:-$(command -v helm || cargo run --quiet --locked --package control-plane -- helm)}
system=stellage-system # the operator's namespace
beside=stellage-e2e    # that of what runs beside it, such as the receiver
receiver=receiver.$beside.svc.cluster.local
patience=120 # seconds
files=$(mktemp -d)
forwards=()

step() { printf '\n=== %s (after %s s)\n' "$1" "$SECONDS"; }
fail() {
    printf 'FAILED: %s\n' "$1" >&2
    exit 1
}
# Tries a command until it succeeds.
eventually() {
    local end=$((SECONDS + patience))
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || fail "waited in vain for: $*"
        sleep 0.2
    done
}

# begin NAMESPACE...: of accounts and servers, beside those two. Whatever ends the test, `show_state` tells of a failure, and `remove_more` removes
# what only that test has made.
begin() {
    local crds found
    namespaces=("$system" "$beside" "$@")
    crds=$(kubectl get crd --output name)
    [[ $crds != *stellage.dev* ]] || fail "the cluster has Stellage already, which this test would remove"
    found=$(kubectl get namespace "${namespaces[@]}" --ignore-not-found --output name)
    [ -z "$found" ] || fail "these namespaces must not exist, because this test removes them: $found"
    trap ended EXIT
    trap 'exit 1' INT TERM # otherwise the status in `ended` is that of the last command
}
show_state() { kubectl --namespace "$system" get pods; }
remove_more() { :; }
# Whatever state the installation is in.
clean_up() (
    set -e
    [ ${#forwards[@]} = 0 ] || kill "${forwards[@]}" || true
    remove_more
    stellage uninstall --force --yes --operator-namespace "$system"
    "$HELM" uninstall stellage --namespace "$system" --ignore-not-found --wait
    kubectl delete namespace "${namespaces[@]}" --ignore-not-found --timeout 120s
)
ended() {
    local status=$?
    if [ "$status" != 0 ]; then
        show_state
        kubectl --namespace "$system" logs --selector app.kubernetes.io/name=stellage --tail 40 --prefix
    fi >&2 || true
    step "Clean up"
    # Not in a condition, where `set -e` has no effect.
    set +e
    clean_up >"$files/clean-up" 2>&1
    [ $? = 0 ] || { status=1 && cat "$files/clean-up"; }
    rm -r "$files"
    [ "$status" != 0 ] || step PASSED
    exit "$status"
}

# image NAME SOURCE: of a program in Go, in a file or, as MODULE@VERSION, in a module
image() {
    case $2 in
    *@*) CGO_ENABLED=0 GOBIN=$files/bin go install -trimpath "$2" && mv "$files/bin/"* "$images/$1" ;;
    *) CGO_ENABLED=0 GOOS=linux go build -trimpath -o "$images/$1" "$2" ;;
    esac
    packer --name "localhost/stellage-e2e-$1:1" --program "$images/$1" --commit none --created 0 --output "$images/$1.tar"
}
load_images() {
    local name
    for name in "$@"; do $E2E_LOAD "$images/$name.tar"; done
}

# The namespaces, and the example receiver behind a Service. It comes first, because the cluster takes a moment to lead the
# Service's clients to it, and a test event is sent only once.
install_receiver() {
    kubectl create namespace "$system"
    kubectl label namespace "$system" pod-security.kubernetes.io/enforce=restricted
    kubectl create namespace "$beside"
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=receiver -addext "subjectAltName=DNS:$receiver" \
        -addext basicConstraints=critical,CA:FALSE -keyout "$files/key" -out "$files/cert" 2>/dev/null
    kubectl --namespace "$system" create secret generic receiver-ca --from-file ca.crt="$files/cert"
    kubectl --namespace "$beside" create secret tls receiver-tls --cert "$files/cert" --key "$files/key"
    export WEBHOOK_SECRET=whsec_b25seSBmb3IgdGhlIHRlc3Qgb2YgdGhlIGNoYXJ0
    kubectl --namespace "$beside" create secret generic receiver --from-literal WEBHOOK_SECRET="$WEBHOOK_SECRET"
    kubectl --namespace "$beside" apply --filename e2e/pods.yaml --selector app=receiver
}
# received EVENT NAME: the lines of the receiver about an event of an instance; fails if there are none
received() { kubectl --namespace "$beside" logs deployment/receiver | grep "received instance.$1 .* for $2\$"; }
create_webhook() {
    kubectl --namespace "$beside" rollout status deployment/receiver --timeout 1m
    examples/webhook.sh "https://$receiver:8443/"
}

# forward NAMESPACE SERVICE:PORT: makes it reachable at $forwarded, until the test ends
forward() {
    local said=$files/forward-${2%:*}
    kubectl --namespace "$1" port-forward "service/${2%:*}" ":${2#*:}" >"$said" &
    forwards+=($!)
    eventually grep --quiet Forwarding "$said"
    forwarded=$(grep --max-count 1 --only-matching '127.0.0.1:[0-9]*' "$said")
}

# account NAME: makes an account and a key, and exports what clients of the REST API need
account() {
    stellage account create "$1" --email "$1@example.com" --rate-limit-per-hour 1000000
    STELLAGE_API_KEY=$(stellage key create --account "$1" --output json | jq -r .key)
    forward "$system" stellage:80
    STELLAGE_URL=http://$forwarded
    export STELLAGE_API_KEY STELLAGE_URL
}
