// Receives webhooks on loopback and verifies each with the public libraries for Node. It prints a line
// for each request, "ok ID TYPE" or why it is refused, and answers 204 or 401. It runs until it is
// killed. PORT is where it listens, SECRET the webhook's whsec_ secret:
//
//	PORT=9090 SECRET=whsec_… node webhooks.mjs
import { createServer } from "node:http";
import { Webhook as Standard } from "standardwebhooks";
import { Webhook as Svix } from "svix";

const { PORT, SECRET } = process.env;
if (!PORT || !SECRET) throw new Error("PORT and SECRET must be set");
const standard = new Standard(SECRET);
const svix = new Svix(SECRET);

// read returns the body of a request as it was sent.
const read = async (request) => {
  const parts = [];
  for await (const part of request) parts.push(part);
  return Buffer.concat(parts);
};

const server = createServer(async (request, answer) => {
  const id = request.headers["webhook-id"];
  try {
    const body = await read(request);
    const event = standard.verify(body, request.headers); // throws for what does not verify
    svix.verify(body, request.headers);
    if (event.id !== id) throw new Error(`the body is of ${event.id}`);
    console.log(`ok ${id} ${event.type}`);
    answer.writeHead(204).end();
  } catch (error) {
    console.log(`refused ${id}: ${error.message}`);
    answer.writeHead(401).end();
  }
});
server.listen(Number(PORT), "127.0.0.1", () => console.error(`listening on port ${server.address().port}`));
