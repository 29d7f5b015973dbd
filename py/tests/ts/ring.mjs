// One TypeScript client waits for a bell, claims what it rang for by its id, and pulls once more with wait_seconds.
// usage: node ring.mjs sdk|client|client-auto ADDRESS CREDENTIAL
const [kind, address, credential] = process.argv.slice(2);
const options = { requestInit: { headers: { Authorization: `Bearer ${credential}` } } };
const me = { name: "switchboard-test", version: "1" };

async function load() {
  if (kind === "sdk") {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const { StreamableHTTPClientTransport: Transport } = await import(
      "@modelcontextprotocol/sdk/client/streamableHttp.js"
    );
    return { client: new Client(me), Transport };
  }
  const { Client, StreamableHTTPClientTransport: Transport } = await import(
    "@modelcontextprotocol/client"
  );
  const settings = kind === "client-auto" ? { versionNegotiation: { mode: "auto" } } : {};
  return { client: new Client(me, settings), Transport };
}

const { client, Transport } = await load();
const bell = new Promise((resolve) => {
  client.fallbackNotificationHandler = async (notification) => resolve(notification);
});
const transport = new Transport(new URL(address), options);
await client.connect(transport);
const saw = { kind, capability: client.getServerCapabilities().experimental };
const { method, params } = await bell;
saw.bell = { method, params };
const call = async (name, args) => (await client.callTool({ name, arguments: args })).structuredContent;
saw.claimed = (await call("claim", { id: saw.bell.params.meta.todo_id })).todo.title;
saw.pulled = (await call("claim_next", { wait_seconds: 30 })).todo.title;
if (transport.terminateSession) await transport.terminateSession();
await client.close();
console.log(JSON.stringify(saw));
