// A page with connect: watches a session over gRPC-web while another client appends, is cut again and again, goes on by
// seq, and posts what it saw.

import { createFileRegistry, fromBinary } from "@bufbuild/protobuf";
import { FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";

async function watchAll({ address, session, until }) {
  const descriptors = new Uint8Array(await (await fetch("/descriptors")).arrayBuffer());
  const registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, descriptors));
  const transport = createGrpcWebTransport({ baseUrl: address });
  const log = createClient(registry.getService("quipu.v1.LogService"), transport);
  const seen = [];
  let cuts = 0;
  let next;
  while (next === undefined || next < until) {
    const cut = new AbortController();
    // The last stream runs to the end; the others are cut after some frames.
    let frames = 1 + Math.floor(Math.random() * 6);
    try {
      for await (const message of log.watch({ sessionId: session, fromSeq: next }, { signal: cut.signal })) {
        if (message.content.case === "page") next = Number(message.content.value.firstSeq);
        if (message.content.case === "frame" && message.content.value.frame.case === "events") {
          for (const event of message.content.value.frame.value.events) {
            seen.push(Number(event.seq));
            next = Number(event.seq) + 1;
          }
        }
        if (next >= until) break;
        if (--frames === 0) cut.abort();
      }
    } catch (error) {
      if (ConnectError.from(error).code !== Code.Canceled) throw error;
      cuts += 1;
    } finally {
      cut.abort();
    }
  }
  // A refusal arrives with its reason, which needs the headers that the server exposes.
  let refusal;
  try {
    for await (const _ of log.watch({ sessionId: "nobody" }));
  } catch (error) {
    const { code, details } = ConnectError.from(error);
    refusal = { code: Code[code], details: details.map((detail) => detail.type) };
  }
  return { seen, cuts, refusal };
}

const post = (result) => fetch("/result", { method: "POST", body: JSON.stringify(result) });
const settings = await (await fetch("/settings")).json();
watchAll(settings).then(post, (error) => post({ error: String(error?.stack ?? error) }));
