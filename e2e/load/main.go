// Command load sends requests to the REST API until it is told to end, and prints each second how many there were and how many failed.
// Half of its workers open a connection for each request, as new clients do; the others keep theirs.
//
//	STELLAGE_URL=http://stellage.stellage-system STELLAGE_API_KEY=… INSTANCE=i-… load
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	workers = 8
	pause   = 200 * time.Millisecond // between the requests of a worker
)

var requests, failed atomic.Int64

// request counts itself, as failed unless the answer is a success.
func request(client *http.Client, method, path, body string) {
	requests.Add(1)
	err := func() error {
		request, err := http.NewRequest(method, os.Getenv("STELLAGE_URL")+path, strings.NewReader(body))
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer "+os.Getenv("STELLAGE_API_KEY"))
		request.Header.Set("Content-Type", "application/json")
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err == nil && answer.StatusCode >= 300 {
			err = fmt.Errorf("%s %s", answer.Status, text)
		}
		return err
	}()
	if err != nil {
		failed.Add(1)
		fmt.Printf("%s %s %s: %v\n", time.Now().UTC().Format(time.TimeOnly), method, path, err)
	}
}

func work(client *http.Client) {
	instance := "/v1/instances/" + os.Getenv("INSTANCE")
	for count := 0; ; count++ {
		request(client, http.MethodGet, "/v1/instances", "")
		request(client, http.MethodPatch, instance, fmt.Sprintf(`{"tags": ["load-%d"]}`, count))
		time.Sleep(pause)
	}
}

func main() {
	end, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	for worker := range workers {
		transport := &http.Transport{DisableKeepAlives: worker%2 == 0}
		go work(&http.Client{Transport: transport, Timeout: time.Minute})
	}
	for end.Err() == nil {
		time.Sleep(time.Second)
		fmt.Printf("%d requests, %d failed\n", requests.Load(), failed.Load())
	}
}
