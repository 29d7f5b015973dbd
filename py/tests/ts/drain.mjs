// One TypeScript client does the agent's loop and prints what it saw as one JSON object.
// usage: node drain.mjs sdk|client|client-auto ADDRESS CREDENTIAL
//   sdk          @modelcontextprotocol/sdk (1.x)
//   client       @modelcontextprotocol/client (2.x), as it is by default
//   client-auto  the same, probing for the newest protocol version first
const [kind, address, credential] = process.argv.slice(2);
const options = { requestInit: { headers: { Authorization: `Bearer ${credential}` } } };
const me = { name: "switchboard-test", version: "1" };

async function connect() {
  if (kind === "sdk") {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const { StreamableHTTPClientTransport: Transport } = await import(
      "@modelcontextprotocol/sdk/client/streamableHttp.js"
    );
    const client = new Client(me);
    const transport = new Transport(new URL(address), options);
    await client.connect(transport);
    return { client, transport };
  }
  const { Client, StreamableHTTPClientTransport: Transport } = await import(
    "@modelcontextprotocol/client"
  );
  const settings = kind === "client-auto" ? { versionNegotiation: { mode: "auto" } } : {};
  const client = new Client(me, settings);
  const transport = new Transport(new URL(address), options);
  await client.connect(transport);
  return { client, transport };
}

// Both clients check structured content against the output schemas they learned from tools/list.
const saw = { kind };
const { client, transport } = await connect();
const call = (name, args = {}) => client.callTool({ name, arguments: args });

saw.instructions = client.getInstructions();
saw.session = Boolean(transport.sessionId);
saw.version = transport.protocolVersion;
saw.tools = (await client.listTools()).tools.map((tool) => tool.name);
const claimed = (await call("claim_next")).structuredContent;
saw.claimed = claimed.todo.title;
const ticket = { id: claimed.todo.id, lease_token: claimed.todo.lease_token };
saw.heartbeat = (await call("heartbeat", ticket)).structuredContent.todo.state;
saw.completed = (await call("complete", { ...ticket, result: { by: kind } })).structuredContent.todo.state;
saw.empty = (await call("claim_next")).structuredContent.empty;
const conflict = await call("complete", ticket);
saw.conflict = [conflict.isError, conflict.structuredContent.error.code];
const missing = await call("get_todo", { id: "not-a-uuid" });
saw.missing = [missing.isError, missing.structuredContent.error.code];
saw.unknown = await call("no_such_tool").then(
  () => "answered",
  (error) => error.code,
);
if (transport.terminateSession) await transport.terminateSession();
await client.close();
console.log(JSON.stringify(saw));
