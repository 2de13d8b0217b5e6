// A webhook receiver in Go, using only its standard library.
//
//	WEBHOOK_SECRET=whsec_… PORT=8443 TLS_CERT=cert.pem TLS_KEY=key.pem go run main.go
package main

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

const (
	maxBody       = 256 << 10 // bytes; an event has a few hundred
	maxWaiting    = 1_000     // events that are accepted but not yet processed
	maxRemembered = 10_000    // event ids
)

type event struct {
	ID   string `json:"id"`
	Type string `json:"type"`
	Data struct {
		Instance struct {
			Name string `json:"name"`
		} `json:"instance"`
	} `json:"data"`
}

type receiver struct {
	secret  []byte
	waiting chan event

	mutex sync.Mutex
	// In memory only. To survive a restart, insert the id into a table with a unique index, in the transaction that does the
	// work.
	seen  map[string]bool
	order []string // the ids in seen, as a ring buffer
	next  int      // the oldest, once the ring is full
}

// isAuthentic checks the raw bytes: JSON that is parsed and serialised again has different bytes. hmac.Equal compares in constant
// time, so a signature cannot be guessed byte by byte.
func (r *receiver) isAuthentic(body []byte, signature string) bool {
	mac := hmac.New(sha256.New, r.secret)
	mac.Write(body)
	return hmac.Equal([]byte(hex.EncodeToString(mac.Sum(nil))), []byte(signature))
}

// accept queues an event unless it has been seen before; false if the queue is full. Every event arrives at least once,
// sometimes twice.
func (r *receiver) accept(e event) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.seen[e.ID] {
		return true
	}
	select {
	case r.waiting <- e:
	default:
		return false
	}
	r.seen[e.ID] = true
	if len(r.order) < maxRemembered {
		r.order = append(r.order, e.ID)
	} else {
		delete(r.seen, r.order[r.next])
		r.order[r.next] = e.ID
		r.next = (r.next + 1) % maxRemembered
	}
	return true
}

// work processes accepted events until the queue is closed.
func (r *receiver) work() {
	for e := range r.waiting {
		fmt.Printf("received %s %s for %s\n", e.Type, e.ID, cmp.Or(e.Data.Instance.Name, "-"))
	}
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	w.WriteHeader(r.handle(w, request))
}

func (r *receiver) handle(w http.ResponseWriter, request *http.Request) int {
	if request.Method != http.MethodPost {
		return http.StatusMethodNotAllowed
	}
	if request.ContentLength > maxBody {
		w.Header().Set("Connection", "close")
		return http.StatusRequestEntityTooLarge
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, request.Body, maxBody))
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &tooLong):
		return http.StatusRequestEntityTooLarge
	case err != nil:
		return http.StatusBadRequest
	case !r.isAuthentic(body, request.Header.Get("X-Service-Signature")):
		return http.StatusUnauthorized
	}
	var e event
	if json.Unmarshal(body, &e) != nil {
		return http.StatusBadRequest
	}
	// The signature covers only the body: without this check, an old event with another id in the header would pass as new.
	if e.ID != request.Header.Get("X-Service-Event-ID") {
		return http.StatusUnauthorized
	}
	// The queue is full. Any response other than 2xx makes the sender try again later.
	if !r.accept(e) {
		return http.StatusServiceUnavailable
	}
	return http.StatusOK
}

func main() {
	secret := os.Getenv("WEBHOOK_SECRET")
	if secret == "" {
		log.Fatal("set WEBHOOK_SECRET to the secret of the webhook")
	}
	r := &receiver{secret: []byte(secret), waiting: make(chan event, maxWaiting), seen: map[string]bool{}}

	host := cmp.Or(os.Getenv("HOST"), "127.0.0.1")
	listener, err := net.Listen("tcp", net.JoinHostPort(host, cmp.Or(os.Getenv("PORT"), "8443")))
	if err != nil {
		log.Fatal(err)
	}
	// ReadTimeout: a slow client cannot hold a connection.
	server := &http.Server{Handler: r, ReadTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	certificate, scheme := os.Getenv("TLS_CERT"), "http"
	serve := func() error { return server.Serve(listener) }
	if certificate != "" {
		scheme = "https"
		serve = func() error { return server.ServeTLS(listener, certificate, os.Getenv("TLS_KEY")) }
	}

	stopped, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var worker sync.WaitGroup
	worker.Add(1)
	go func() {
		defer worker.Done()
		r.work()
	}()
	go func() {
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			log.Fatal(err)
		}
	}()
	fmt.Printf("listening on %s://%s:%d/\n", scheme, host, listener.Addr().(*net.TCPAddr).Port)

	// Accept no more requests, answer those in progress, and process what was accepted.
	<-stopped.Done()
	ending, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = server.Shutdown(ending)
	// A request that is still running now fails on the closed queue, and its sender tries again.
	close(r.waiting)
	worker.Wait()
}
