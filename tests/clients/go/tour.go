// A tour of the service with the client that docs/clients.md makes of the OpenAPI document. Each step prints a line.
//
//	STELLAGE_URL=… STELLAGE_API_KEY=… go run . https://receiver.example.com/
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"stellage.dev/tour/stellage"
)

func main() {
	log.SetFlags(0)
	url, key := os.Getenv("STELLAGE_URL"), os.Getenv("STELLAGE_API_KEY")
	if url == "" || key == "" || len(os.Args) != 2 {
		log.Fatal("set STELLAGE_URL and STELLAGE_API_KEY, and name the HTTPS URL of a receiver")
	}
	authorize := func(_ context.Context, request *http.Request) error {
		request.Header.Set("Authorization", "Bearer "+key)
		return nil
	}
	client, err := stellage.NewClientWithResponses(url, stellage.WithRequestEditorFn(authorize))
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	tour := tour{ctx, client}
	if err := errors.Join(tour.plans(), tour.instances(), tour.webhooks(os.Args[1]), tour.account()); err != nil {
		log.Fatal(err)
	}
}

type tour struct {
	ctx    context.Context
	client *stellage.ClientWithResponses
}

// An answer of any operation.
type answer interface {
	Status() string
	GetBody() []byte
}

func unexpected(what string, answer answer) error {
	return fmt.Errorf("%s: %s %s", what, answer.Status(), answer.GetBody())
}

// wait looks until what is seen is as wanted.
func wait[T any](ctx context.Context, look func() (T, error), wanted func(T) bool) (T, error) {
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		seen, err := look()
		if err != nil || wanted(seen) {
			return seen, err
		}
		select {
		case <-ctx.Done():
			return seen, fmt.Errorf("waited in vain, and saw %+v", seen)
		case <-ticker.C:
		}
	}
}

func (t tour) waitForStatus(id stellage.InstanceId, status stellage.InstanceStatus) (stellage.Instance, error) {
	look := func() (stellage.Instance, error) {
		got, err := t.client.GetInstanceWithResponse(t.ctx, id, nil)
		if err != nil {
			return stellage.Instance{}, err
		}
		if got.JSON200 == nil {
			return stellage.Instance{}, unexpected("get", got)
		}
		return got.JSON200.Data, nil
	}
	return wait(t.ctx, look, func(instance stellage.Instance) bool { return instance.Status == status })
}

func (t tour) plans() error {
	got, err := t.client.ListPlansWithResponse(t.ctx, &stellage.ListPlansParams{Limit: new(100)})
	if err != nil {
		return err
	}
	if got.JSON200 == nil {
		return unexpected("plans", got)
	}
	var names []string
	for _, plan := range got.JSON200.Data {
		names = append(names, string(plan.Id))
	}
	fmt.Printf("%d plans: %s\n", got.JSON200.Pagination.Total, strings.Join(names, ", "))
	return nil
}

func (t tour) instances() error {
	id, err := t.create()
	if err != nil {
		return err
	}
	running, err := t.waitForStatus(id, "running")
	if err != nil {
		return err
	}
	fmt.Printf("%s: %d vCPU, address %t\n", running.Status, running.Vcpu, running.IpAddress != nil)
	changed, err := t.client.ChangeInstanceWithResponse(t.ctx, id, nil, stellage.ChangeInstance{Tags: &[]string{"env:tour"}})
	if err != nil {
		return err
	}
	if changed.JSON200 == nil {
		return unexpected("change", changed)
	}
	fmt.Printf("tags: %s\n", strings.Join(changed.JSON200.Data.Tags, ", "))
	list, err := t.client.ListInstancesWithResponse(t.ctx, &stellage.ListInstancesParams{Region: new("fr-par-1")})
	if err != nil {
		return err
	}
	if list.JSON200 == nil {
		return unexpected("list", list)
	}
	isIt := func(listed stellage.InstanceSummary) bool { return listed.Id == id }
	fmt.Printf("listed: %t\n", slices.ContainsFunc(list.JSON200.Data, isIt))
	return errors.Join(t.stop(id), t.delete(id))
}

func (t tour) create() (stellage.InstanceId, error) {
	params := stellage.CreateInstanceParams{IdempotencyKey: new(rand.Text())}
	order := stellage.CreateInstance{Name: "tour", Plan: stellage.PlanStarter, Region: "fr-par-1", Image: new("debian-13")}
	created, err := t.client.CreateInstanceWithResponse(t.ctx, &params, order)
	if err != nil {
		return "", err
	}
	if created.JSON201 == nil {
		return "", unexpected("create", created)
	}
	fmt.Printf("created: %s\n", created.JSON201.Data.Status)
	again, err := t.client.CreateInstanceWithResponse(t.ctx, &params, order)
	if err != nil {
		return "", err
	}
	if again.JSON201 == nil {
		return "", unexpected("create again", again)
	}
	replayed := again.Headers201.IdempotencyReplayed
	fmt.Printf("created again: replayed %t, same %t\n",
		replayed != nil && *replayed == "true", again.JSON201.Data.Id == created.JSON201.Data.Id)
	return created.JSON201.Data.Id, nil
}

func (t tour) stop(id stellage.InstanceId) error {
	stopped, err := t.client.StopInstanceWithResponse(t.ctx, id, nil)
	if err != nil {
		return err
	}
	if stopped.JSON202 == nil {
		return unexpected("stop", stopped)
	}
	fmt.Printf("stop: %s\n", stopped.JSON202.Data.Status)
	if _, err := t.waitForStatus(id, "stopped"); err != nil {
		return err
	}
	refused, err := t.client.RebootInstanceWithResponse(t.ctx, id, nil)
	if err != nil {
		return err
	}
	if refused.JSON409 == nil {
		return unexpected("reboot", refused)
	}
	var details []string
	for _, detail := range refused.JSON409.Error.Details {
		details = append(details, fmt.Sprintf("%s %s", detail.Field, detail.Code))
	}
	fmt.Printf("reboot: %s, %s\n", refused.JSON409.Error.Code, strings.Join(details, ", "))
	return nil
}

func (t tour) delete(id stellage.InstanceId) error {
	deleted, err := t.client.DeleteInstanceWithResponse(t.ctx, id, nil)
	if err != nil {
		return err
	}
	fmt.Printf("deleted: %d\n", deleted.StatusCode())
	gone, err := t.client.GetInstanceWithResponse(t.ctx, id, nil)
	if err != nil {
		return err
	}
	if gone.JSON404 == nil {
		return unexpected("get", gone)
	}
	fmt.Printf("then: %s\n", gone.JSON404.Error.Code)
	return nil
}

func (t tour) webhooks(receiver string) error {
	order := stellage.CreateWebhook{
		Url:    receiver,
		Events: []stellage.EventType{stellage.EventTypeInstanceCreated, stellage.EventTypeBackupFailed},
	}
	created, err := t.client.CreateWebhookWithResponse(t.ctx, nil, order)
	if err != nil {
		return err
	}
	if created.JSON201 == nil {
		return unexpected("webhook", created)
	}
	webhook := created.JSON201.Data
	shown := webhook.Secret != nil && strings.HasPrefix(*webhook.Secret, "whsec_")
	fmt.Printf("webhook: active %t, secret %t\n", webhook.Active, shown)
	return errors.Join(t.deliver(webhook.Id), t.deleteWebhook(webhook.Id))
}

func (t tour) deliver(id stellage.WebhookId) error {
	sent, err := t.client.TestWebhookWithResponse(t.ctx, id, nil, stellage.TestWebhook{})
	if err != nil {
		return err
	}
	if sent.JSON202 == nil {
		return unexpected("test", sent)
	}
	look := func() (stellage.Delivery, error) {
		got, err := t.client.GetDeliveryWithResponse(t.ctx, id, sent.JSON202.Data.Id, nil)
		if err != nil {
			return stellage.Delivery{}, err
		}
		if got.JSON200 == nil {
			return stellage.Delivery{}, unexpected("delivery", got)
		}
		return got.JSON200.Data, nil
	}
	isDelivered := func(delivery stellage.Delivery) bool { return delivery.Status == "delivered" }
	delivered, err := wait(t.ctx, look, isDelivered)
	if err != nil {
		return err
	}
	fmt.Printf("delivery: %s %s %d\n", delivered.EventType, delivered.Status, *delivered.Attempts[0].StatusCode)
	list, err := t.client.ListDeliveriesWithResponse(t.ctx, id, nil)
	if err != nil {
		return err
	}
	if list.JSON200 == nil {
		return unexpected("deliveries", list)
	}
	fmt.Printf("deliveries: %d\n", len(list.JSON200.Data))
	return nil
}

func (t tour) deleteWebhook(id stellage.WebhookId) error {
	deleted, err := t.client.DeleteWebhookWithResponse(t.ctx, id, nil)
	if err != nil {
		return err
	}
	fmt.Printf("deleted: %d\n", deleted.StatusCode())
	return nil
}

func (t tour) account() error {
	shown, err := t.client.GetAccountWithResponse(t.ctx, nil)
	if err != nil {
		return err
	}
	if shown.JSON200 == nil {
		return unexpected("account", shown)
	}
	created, err := t.client.CreateKeyWithResponse(t.ctx, nil, stellage.CreateKey{Scope: new(stellage.KeyScopeRead)})
	if err != nil {
		return err
	}
	if created.JSON201 == nil {
		return unexpected("create key", created)
	}
	key := created.JSON201.Data
	fmt.Printf("key: %s, of %d webhooks %d\n", key.Scope, *shown.JSON200.Data.Quotas.Webhooks.Limit, shown.JSON200.Data.Quotas.Webhooks.Used)
	revoked, err := t.client.RevokeKeyWithResponse(t.ctx, key.Id, nil)
	if err != nil {
		return err
	}
	fmt.Printf("revoked: %d\n", revoked.StatusCode())
	return nil
}
