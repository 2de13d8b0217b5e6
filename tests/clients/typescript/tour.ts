// A tour of the service with the client that docs/clients.md makes of the OpenAPI document. Each step prints a line.
//
//   STELLAGE_URL=… STELLAGE_API_KEY=… node dist/tour.js https://receiver.example.com/
import createClient from "openapi-fetch";

import type { CreateWebhook, Delivery, ErrorAnswer, Instance, InstanceStatus, paths } from "./stellage.js";

// What it needs of Node.js, the rest being the same in browsers: the types of all of it take longer to check than this.
declare const process: { argv: string[]; env: Record<string, string | undefined> };

const [receiver] = process.argv.slice(2);
const { STELLAGE_URL: baseUrl, STELLAGE_API_KEY: key } = process.env;
if (!baseUrl || !key || !receiver) {
  throw new Error("set STELLAGE_URL and STELLAGE_API_KEY, and name the HTTPS URL of a receiver");
}
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${key}` } });

interface Answer<T> {
  data?: T;
  error?: ErrorAnswer;
  response: Response;
}

/** What was answered, if it was a success; throws otherwise. */
function success<T>({ data, error, response }: Answer<T>): T {
  if (data === undefined) {
    throw new Error(`${response.url}: ${response.status} ${error?.error.message ?? "without a body"}`);
  }
  return data;
}

/** The error that was answered; throws if it was a success or has another status. */
function failure<T>(status: number, { error, response }: Answer<T>): ErrorAnswer["error"] {
  if (error === undefined || response.status !== status) {
    throw new Error(`${response.url}: ${response.status}, and not ${status}`);
  }
  return error.error;
}

/** Looks until what is seen is as wanted; for two minutes. */
async function wait<T>(what: string, look: () => Promise<T>, wanted: (seen: T) => boolean): Promise<T> {
  const deadline = Date.now() + 120_000;
  for (;;) {
    const seen = await look();
    if (wanted(seen)) return seen;
    if (Date.now() > deadline) throw new Error(`${what}: waited in vain, and saw ${JSON.stringify(seen)}`);
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

function waitForStatus(id: string, status: InstanceStatus): Promise<Instance> {
  const look = async () => success(await client.GET("/v1/instances/{id}", { params: { path: { id } } })).data;
  return wait(status, look, (instance) => instance.status === status);
}

async function plans(): Promise<void> {
  const { data, pagination } = success(await client.GET("/v1/plans", { params: { query: { limit: 100 } } }));
  console.log(`${pagination.total} plans: ${data.map((plan) => plan.id).join(", ")}`);
}

async function instances(): Promise<void> {
  const order = {
    params: { header: { "Idempotency-Key": crypto.randomUUID() } },
    body: { name: "tour", plan: "starter", region: "fr-par-1", image: "debian-13" },
  } as const;
  const created = success(await client.POST("/v1/instances", order)).data;
  console.log(`created: ${created.status}`);
  const again = await client.POST("/v1/instances", order);
  const replayed = again.response.headers.get("Idempotency-Replayed") === "true";
  console.log(`created again: replayed ${replayed}, same ${success(again).data.id === created.id}`);

  const target = { params: { path: { id: created.id } } };
  const running = await waitForStatus(created.id, "running");
  console.log(`${running.status}: ${running.vcpu} vCPU, address ${running.ip_address !== null}`);
  const changed = success(
    await client.PATCH("/v1/instances/{id}", { ...target, body: { tags: ["env:tour"] } }),
  ).data;
  console.log(`tags: ${changed.tags.join(", ")}`);
  const listed = success(await client.GET("/v1/instances", { params: { query: { region: "fr-par-1" } } }));
  console.log(`listed: ${listed.data.some(({ id }) => id === created.id)}`);

  console.log(`stop: ${success(await client.POST("/v1/instances/{id}/stop", target)).data.status}`);
  await waitForStatus(created.id, "stopped");
  const refused = failure(409, await client.POST("/v1/instances/{id}/reboot", target));
  console.log(`reboot: ${refused.code}, ${refused.details.map(({ field, code }) => `${field} ${code}`).join(", ")}`);

  const deleted = await client.DELETE("/v1/instances/{id}", target);
  console.log(`deleted: ${deleted.response.status}`);
  console.log(`then: ${failure(404, await client.GET("/v1/instances/{id}", target)).code}`);
}

async function webhooks(url: string): Promise<void> {
  const body = { url, events: ["instance.created", "backup.failed"] } satisfies CreateWebhook;
  const webhook = success(await client.POST("/v1/webhooks", { body })).data;
  console.log(`webhook: active ${webhook.active}, secret ${webhook.secret?.startsWith("whsec_")}`);
  const path = { id: webhook.id };
  const sent = success(await client.POST("/v1/webhooks/{id}/test", { params: { path } })).data;
  const look = async (): Promise<Delivery> => {
    const params = { path: { ...path, delivery_id: sent.id } };
    return success(await client.GET("/v1/webhooks/{id}/deliveries/{delivery_id}", { params })).data;
  };
  const delivered = await wait("delivered", look, ({ status }) => status === "delivered");
  console.log(`delivery: ${delivered.event_type} ${delivered.status} ${delivered.attempts[0]?.status_code ?? "-"}`);
  const list = success(await client.GET("/v1/webhooks/{id}/deliveries", { params: { path } }));
  console.log(`deliveries: ${list.data.length}`);
  const deleted = await client.DELETE("/v1/webhooks/{id}", { params: { path } });
  console.log(`deleted: ${deleted.response.status}`);
}

async function account(): Promise<void> {
  const { quotas } = success(await client.GET("/v1/account")).data;
  const key = success(await client.POST("/v1/keys", { body: { scope: "read" } })).data;
  console.log(`key: ${key.scope}, of ${quotas.webhooks.limit} webhooks ${quotas.webhooks.used}`);
  const revoked = await client.DELETE("/v1/keys/{id}", { params: { path: { id: key.id } } });
  console.log(`revoked: ${revoked.response.status}`);
}

await plans();
await instances();
await webhooks(receiver);
await account();
