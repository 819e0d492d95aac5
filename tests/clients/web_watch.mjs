// A page's way to quipu: gRPC-web over fetch, without a library. Follows a session while it appends to it, is cut, goes
// on, and prints the seqs that it saw.
//
//   node web_watch.mjs http://host:port SESSION ORIGIN

const [address, session, origin] = process.argv.slice(2);

const varint = (n) => {
  const out = [];
  for (let rest = BigInt(n); ; rest >>= 7n) {
    if (rest < 128n) return [...out, Number(rest)];
    out.push(Number(rest & 127n) | 128);
  }
};
const number = (field, n) => [...varint(field << 3), ...varint(n)];
const bytes = (field, data) => [...varint((field << 3) | 2), ...varint(data.length), ...data];
const text = (field, string) => bytes(field, new TextEncoder().encode(string));

function* fields(message) {
  let at = 0;
  const read = () => {
    let n = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = BigInt(message[at++]);
      n |= (byte & 127n) << shift;
      if (byte < 128n) return Number(n);
    }
  };
  while (at < message.length) {
    const tag = read();
    if ((tag & 7) === 0) yield [tag >> 3, read()];
    else if ((tag & 7) === 2) {
      const length = read();
      yield [tag >> 3, message.subarray(at, (at += length))];
    } else throw new Error(`wire type ${tag & 7}`);
  }
}
const field = (message, wanted) => [...fields(message)].filter(([name]) => name === wanted).map(([, value]) => value);

const call = (method, message, signal) => {
  const body = new Uint8Array([0, ...new Uint8Array(new Uint32Array([message.length]).buffer).reverse(), ...message]);
  const headers = { "content-type": "application/grpc-web+proto", "x-grpc-web": "1", origin };
  return fetch(`${address}/quipu.v1.LogService/${method}`, { method: "POST", headers, body, signal });
};

async function* messages(response) {
  const refused = response.headers.get("grpc-status") ?? "0";
  if (refused !== "0") throw new Error(`status ${refused}: ${response.headers.get("grpc-message")}`);
  let rest = new Uint8Array();
  for await (const chunk of response.body) {
    rest = new Uint8Array([...rest, ...chunk]);
    while (rest.length >= 5) {
      const length = new DataView(rest.buffer, rest.byteOffset + 1).getUint32(0);
      if (rest.length < 5 + length) break;
      if (rest[0] & 128) return;
      yield rest.slice(5, 5 + length);
      rest = rest.slice(5 + length);
    }
  }
}

let next = 0;
const append = async () => {
  const event = [...number(2, 1), ...text(3, "note"), ...text(4, "{}"), ...number(5, 1)];
  const response = await call("Append", [...text(2, session), ...number(3, next++), ...bytes(4, event)]);
  for await (const _ of messages(response)) return;
  throw new Error(`append: ${response.headers.get("grpc-message")}`);
};

// Follows from a seq (without one: from the page) until it has seen everything below `until`, then cuts the call.
const seen = [];
async function watch(from, until, meanwhile) {
  const cut = new AbortController();
  const request = [...text(2, session), ...(from === undefined ? [] : number(3, from))];
  const response = await call("Watch", request, cut.signal);
  if (response.headers.get("access-control-allow-origin") !== origin) throw new Error("the page may not read this");
  const appending = meanwhile();
  for await (const message of messages(response)) {
    for (const frame of field(message, 2)) {
      for (const events of field(frame, 2)) {
        for (const event of field(events, 1)) seen.push(field(event, 1)[0] ?? 0);
      }
    }
    if (seen.length && seen.at(-1) + 1 >= until) break;
  }
  await appending;
  cut.abort();
}

const many = (count) => async () => {
  for (let n = 0; n < count; n++) await append();
};

const preflight = await fetch(`${address}/quipu.v1.LogService/Watch`, {
  method: "OPTIONS",
  headers: { origin, "access-control-request-method": "POST", "access-control-request-headers": "content-type,x-grpc-web" },
});
if (preflight.headers.get("access-control-allow-origin") !== origin) throw new Error("no preflight");
await many(5)();
await watch(undefined, 10, many(5));
await many(3)();
await watch(10, 20, many(7));
console.log(JSON.stringify(seen));
process.exit(0);
