// Serves a page, opens it in headless Chromium, and prints what it posts.
//
//   node chromium.mjs CHROMIUM NODE_MODULES DESCRIPTORS PROFILE_DIR
//
// Prints the origin of the page first; then takes one line of JSON with the settings of the page.

import { spawn } from "node:child_process";
import { createReadStream, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join, normalize } from "node:path";
import { createInterface } from "node:readline";

const [chromium, modules, descriptors, profile] = process.argv.slice(2);
const here = new URL(".", import.meta.url).pathname;
const esm = (name, path) => `/node_modules/${name}/dist/esm/${path}index.js`;
const imports = {};
for (const [name, parts] of [
  ["@bufbuild/protobuf", ["", "codegenv2", "wkt", "wire", "reflect"]],
  ["@connectrpc/connect", ["", "protocol", "protocol-connect", "protocol-grpc-web"]],
  ["@connectrpc/connect-web", [""]],
]) {
  for (const part of parts) imports[part ? `${name}/${part}` : name] = esm(name, part ? `${part}/` : "");
}
const html = `<!doctype html><script type="importmap">${JSON.stringify({ imports })}</script>
<script type="module" src="/page.mjs"></script>`;

let settings;
let browser;
const finish = (text, code) => {
  console.log(text);
  browser?.kill("SIGKILL");
  process.exit(code);
};
const server = createServer((request, response) => {
  const send = (type, body) => response.writeHead(200, { "content-type": type }).end(body);
  const path = normalize(decodeURIComponent(request.url));
  if (path === "/result") {
    let body = "";
    request.on("data", (chunk) => (body += chunk));
    request.on("end", () => finish(body, 0));
  } else if (path === "/") send("text/html", html);
  else if (path === "/settings") send("application/json", settings);
  else if (path === "/page.mjs") send("text/javascript", readFileSync(join(here, "page.mjs")));
  else if (path === "/descriptors") send("application/octet-stream", readFileSync(descriptors));
  else if (path.startsWith("/node_modules/")) {
    response.writeHead(200, { "content-type": "text/javascript" });
    createReadStream(join(modules, path.slice("/node_modules/".length))).on("error", () => response.end()).pipe(response);
  } else response.writeHead(404).end();
});
server.listen(0, "127.0.0.1", () => {
  const origin = `http://127.0.0.1:${server.address().port}`;
  console.log(origin);
  createInterface({ input: process.stdin }).once("line", (line) => {
    settings = line;
    const flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"];
    browser = spawn(chromium, [...flags, `--user-data-dir=${profile}`, "--enable-logging=stderr", `${origin}/`], {
      stdio: ["ignore", "ignore", "pipe"],
    });
    let said = "";
    browser.stderr.on("data", (chunk) => (said = (said + chunk).slice(-4000)));
    browser.on("exit", () => finish(JSON.stringify({ error: `chromium ended: ${said}` }), 1));
    setTimeout(() => finish(JSON.stringify({ error: `no result in time: ${said}` }), 1), 150_000);
  });
});
