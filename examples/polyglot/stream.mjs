// One stream to a worker or coordinator: handshake, tags, session, bulk lanes.
// docs/wire-format.md, "The handshake" to "Bulk lanes", says all that is done here.

import crypto from "node:crypto";
import tlsSockets from "node:tls";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import { decode, encode } from "@msgpack/msgpack";
import { blake2b } from "@noble/hashes/blake2.js";

const PROTOS = fileURLToPath(new URL("../../protos", import.meta.url));
const pb = loader.loadSync(["telegrad/pb/handshake.proto", "telegrad/pb/frame.proto"], {
  includeDirs: [PROTOS], keepCase: true, longs: String, enums: String, defaults: true,
});
const [Hello, Proof, Welcome, Refusal, Frame] =
  ["Hello", "Proof", "Welcome", "Refusal", "Frame"].map((name) => pb[`telegrad.pb.${name}`]);

const METHOD = "/telegrad.Carrier/Open";
const OPTIONS = { "grpc.enable_http_proxy": 0, "grpc.use_local_subchannel_pool": 1 };
const TAG_BYTES = 16, PIECE_BYTES = 2 ** 20, HEADER_BYTES = 28;
const INLINE_BYTES = 64 * 2 ** 10, INLINE_TOTAL = 256 * 2 ** 10;
const ENVELOPES_PER_RECEIPT = 64;
const GOODBYE_SECONDS = 2;

const bytes = (buffer) => buffer; // gRPC carries our messages as they are
const target = (endpoint) => endpoint.replace(/^grpcs?:\/\//, "");
const joined = (...parts) => Buffer.concat(parts.map((part) => Buffer.from(part)));
const sha256 = (data) => crypto.createHash("sha256").update(data).digest();
const hmac = (key, ...parts) => crypto.createHmac("sha256", key).update(joined(...parts)).digest();

/** With certificates of the job both ends prove their names; else the proofs cover the listener's. */
async function credentialsFor(endpoint, tls) {
  if (!endpoint.startsWith("grpcs://")) return grpc.credentials.createInsecure();
  const { ca, key = null, certificate = null } = tls ?? { ca: await shownAt(endpoint) };
  return grpc.credentials.createSsl(ca, key, certificate, { checkServerIdentity: () => undefined });
}

/** Asks who listens for its certificate: grpc-js tells nothing of one that it does not believe. */
function shownAt(endpoint) {
  const { hostname, port } = new URL(endpoint.replace("grpcs:", "https:"));
  const address = { host: hostname.replace(/^\[|\]$/g, ""), port: Number(port), ALPNProtocols: ["h2"] };
  return new Promise((resolve, reject) => {
    const socket = tlsSockets.connect({ ...address, rejectUnauthorized: false }, () => {
      const lines = socket.getPeerCertificate().raw.toString("base64").match(/.{1,64}/g).join("\n");
      resolve(Buffer.from(`-----BEGIN CERTIFICATE-----\n${lines}\n-----END CERTIFICATE-----\n`));
      socket.end();
    });
    socket.on("error", reject);
  });
}

/** A duplex stream of messages that has proved itself; control streams and lanes alike. */
class Carrier {
  #waiting = [];
  #arrived = [];
  #failure = null;

  static async open(endpoint, { tls, expected }) {
    return new Carrier(endpoint, await credentialsFor(endpoint, tls), expected.name);
  }

  constructor(endpoint, credentials, name) {
    const options = { ...OPTIONS, "grpc.ssl_target_name_override": name };
    this.client = new grpc.Client(target(endpoint), credentials, options);
    this.call = this.client.makeBidiStreamRequest(METHOD, bytes, bytes);
    this.call.on("data", (message) => this.#arrive(message));
    this.call.on("error", (error) => this.#fail(error));
    this.call.on("end", () => this.#fail(new Error(`${endpoint} ended the stream`)));
  }

  #arrive(message) {
    const waiter = this.#waiting.shift();
    if (waiter) waiter.resolve(message);
    else this.#arrived.push(message);
  }

  #fail(error) {
    this.#failure ??= error;
    for (const waiter of this.#waiting.splice(0)) waiter.reject(this.#failure);
  }

  receive() {
    if (this.#arrived.length) return Promise.resolve(this.#arrived.shift());
    if (this.#failure) return Promise.reject(this.#failure);
    return new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }));
  }

  async send(message) {
    if (this.#failure) throw this.#failure;
    if (!this.call.write(message)) await new Promise((resolve) => this.call.once("drain", resolve));
  }

  close() {
    this.call.end();
    this.client.close();
  }

  /** Shakes hands; returns both hellos, joined as all that follows from them needs it. */
  async prove({ job, token, me, expected, tls, laneOf = Buffer.alloc(0) }) {
    const purpose = laneOf.length ? "bulk" : "control";
    const hello = Hello.serialize({
      oldest_version: 2, newest_version: 2, job, name: me.name, rank: me.rank,
      incarnation: me.incarnation, nonce: crypto.randomBytes(32), purpose, stream: laneOf,
      expected_name: expected.name, expected_incarnation: expected.incarnation ?? 0,
    });
    await this.send(joined("H", hello));
    const answer = body("H", await this.receive());
    const peer = Hello.deserialize(answer);
    if (peer.job !== job || peer.name !== expected.name) {
      throw new Error(`${peer.name} of job ${peer.job} answers in place of ${expected.name}`);
    }
    const length = Buffer.alloc(4);
    length.writeUInt32BE(hello.length);
    const hellos = joined(length, hello, answer);
    const shown = this.call.getAuthContext()?.sslPeerCertificate;
    this.encrypted = Boolean(shown);
    if (tls && shown) checkName(shown, peer.name);
    const covered = shown ? joined("tls|", sha256(shown.raw), "|", hellos) : hellos;
    const mac = (role) => hmac(token, `${role}|${purpose}|0,0|`, covered);
    await this.send(joined("P", Proof.serialize({ mac: mac("dialler"), received: 0 })));
    const welcome = Welcome.deserialize(body("W", await this.receive()));
    const proved = welcome.mac.length === 32 && crypto.timingSafeEqual(welcome.mac, mac("listener"));
    if (!proved || welcome.received !== "0" || welcome.resumes) {
      throw new Error(`${peer.name} does not hold the token, or takes this for another session`);
    }
    return hellos;
  }
}

function checkName({ subjectaltname = "" }, name) {
  const names = subjectaltname.split(", ").map((each) => each.replace(/^DNS:/, "").toLowerCase());
  if (!names.includes(name.toLowerCase())) {
    throw new Error(`who says that it is ${name} shows a certificate of ${names.join(" and ")}`);
  }
}

function body(tag, message) {
  const kind = message.subarray(0, 1).toString(), rest = message.subarray(1);
  if (kind === "R") {
    const { reason, words } = Refusal.deserialize(rest);
    throw Object.assign(new Error(words), { reason });
  }
  if (kind !== tag) throw new Error("that was no message of a telegrad handshake");
  return rest;
}

/** Seals or opens the frames of one direction: BLAKE2b(key, counter | payload, 16 bytes). */
class Tags {
  #counter = 0n;

  constructor(token, role, hellos) {
    this.key = hmac(token, `telegrad key|${role}|`, hellos);
  }

  next(payload) {
    const counter = Buffer.alloc(8);
    counter.writeBigUInt64BE(this.#counter++);
    return Buffer.from(blake2b(joined(counter, payload), { key: this.key, dkLen: TAG_BYTES }));
  }

  seal(payload) {
    return joined(this.next(payload), payload);
  }

  open(message) {
    const payload = message.subarray(TAG_BYTES);
    if (!crypto.timingSafeEqual(this.next(payload), message.subarray(0, TAG_BYTES))) {
      throw new Error("a frame carries a wrong tag");
    }
    return payload;
  }
}

/** Reads the head of a frame: of a part that comes in pieces its size stands in its place. */
function* envelopesOf({ head, raw }) {
  const fields = head.length ? decode(head) : [0];
  for (let at = 1, begins = 0; at < fields.length; ) {
    const [number, kind, call, reply, timeLeft, depth, document, externals, headers, buffers] =
      fields.slice(at, (at += 10));
    const parts = [document, externals].map((part) => (part.length === undefined ? part : Buffer.from(part)));
    for (const size of fields.slice(at, (at += buffers))) {
      parts.push(size < 0 ? -size : raw.subarray(begins, (begins += size)));
    }
    at += 2 * headers;
    yield { number, kind, call, reply, timeLeft, depth, parts };
  }
}

/** TLS does as much, and more. */
const UNTAGGED = { seal: bytes, open: bytes };

/** A session on one stream. It is never resumed: when the stream breaks, the peer is lost. */
export class Session {
  #carrier;
  #options;
  #sealing;
  #opening;
  #posted = 0;
  #received = 0; // every envelope up to this number is complete
  #later = new Set(); // complete, too, but some earlier one is not
  #owed = 0; // envelopes since the last receipt was written
  #assemblies = new Map();
  #early = new Map(); // chunks that came before their envelope was announced
  #lane = null;
  #sequence = 0;
  #taken = 0; // chunks
  #leaving = false;
  #ended;

  /** Dials `endpoint`, expects `options.expected` there; `onEnvelope` gets what is complete. */
  static async open(endpoint, options) {
    const session = new Session();
    session.#options = { endpoint, ...options };
    session.#carrier = await Carrier.open(endpoint, options);
    try {
      const hellos = await session.#carrier.prove(options);
      const tags = (role) => new Tags(options.token, role, hellos);
      session.#sealing = session.#carrier.encrypted ? UNTAGGED : tags("dialler");
      session.#opening = session.#carrier.encrypted ? UNTAGGED : tags("listener");
      session.#options.laneOf = hmac(options.token, "telegrad stream|", hellos);
    } catch (error) {
      session.#carrier.close();
      throw error;
    }
    session.#ended = session.#read();
    return session;
  }

  /** Posts an envelope: small parts in it, big ones announced and sent by a lane. */
  async post({ kind, call = 0, reply = false, timeLeft = 0, document, externals, buffers }) {
    const number = ++this.#posted;
    const parts = [document, externals, ...buffers];
    let left = INLINE_TOTAL;
    const inline = parts.map((part) => {
      const fits = part.length <= INLINE_BYTES && part.length <= left;
      left -= fits ? part.length : 0;
      return fits;
    });
    const inside = (i) => (inline[i] ? parts[i] : parts[i].length);
    const sizes = buffers.map((buffer, i) => (inline[i + 2] ? buffer.length : -buffer.length));
    const envelope = [
      number, kind, call, reply, timeLeft, 0, inside(0), inside(1), 0, sizes.length, ...sizes,
    ];
    await this.#write({ raw: joined(...buffers.filter((_, i) => inline[i + 2])) }, envelope);
    for (const [part, data] of parts.entries()) {
      for (let at = 0; !inline[part] && at < data.length; at += PIECE_BYTES) {
        await this.#sendPiece(number, part, at, data.subarray(at, at + PIECE_BYTES));
      }
    }
  }

  /** Says goodbye behind all that was posted; returns when the peer has heard it. */
  async close(reason = "done") {
    try {
      this.#leaving = true;
      await this.#write({ goodbye: { reason } });
      const late = new Promise((resolve) => setTimeout(resolve, GOODBYE_SECONDS * 1000).unref());
      await Promise.race([this.#ended, late]);
    } finally {
      this.#end();
    }
  }

  #end() {
    this.#carrier.close();
    this.#lane?.then((lane) => lane.close(), () => {});
  }

  async #write(frame, envelope = []) {
    this.#owed = 0;
    const payload = Frame.serialize({ head: encode([this.#received, ...envelope]), ...frame });
    await this.#carrier.send(this.#sealing.seal(payload)); // sealed and queued without a pause
  }

  async #read() {
    try {
      for (;;) {
        const message = await this.#carrier.receive();
        const frame = Frame.deserialize(this.#opening.open(message));
        for (const envelope of envelopesOf(frame)) this.#take(envelope);
        if (frame.heartbeat && frame.heartbeat.sent) await this.#answer(frame.heartbeat.sent);
        if (frame.goodbye) {
          if (!this.#leaving) await this.#write({ goodbye: { reason: "answer" } });
          throw new Error(`it left: ${frame.goodbye.reason}`);
        }
        if (this.#owed >= ENVELOPES_PER_RECEIPT) await this.#write({});
      }
    } catch (error) {
      this.#end();
      this.#options.onLost(error);
    }
  }

  /** A heartbeat that is answered is a sign of life; without it the peer gives this one up. */
  async #answer(echo) {
    await this.#write({ heartbeat: { sent: 0, echo, chunks: this.#taken } });
  }

  #take(envelope) {
    const { number, parts } = envelope;
    this.#owed += 1;
    let left = 0;
    for (const [i, part] of parts.entries()) {
      if (typeof part !== "number") continue; // the size of a part that comes in pieces
      parts[i] = Buffer.alloc(part);
      left += part;
    }
    this.#assemblies.set(number, { envelope, parts, left });
    if (left === 0) return this.#complete(number);
    this.#openLane().catch((error) => this.#carrier.call.destroy(error));
    for (const piece of this.#early.get(number) ?? []) this.#place(piece);
    this.#early.delete(number);
  }

  #complete(number) {
    const { envelope, parts } = this.#assemblies.get(number);
    this.#assemblies.delete(number);
    this.#later.add(number);
    while (this.#later.delete(this.#received + 1)) this.#received += 1;
    const [document, externals, ...buffers] = parts;
    this.#options.onEnvelope({ ...envelope, document, externals, buffers });
  }

  // -- lanes: whoever dialled the stream dials them, where there is something big to move ----

  #openLane() {
    this.#lane ??= (async () => {
      const lane = await Carrier.open(this.#options.endpoint, this.#options);
      await lane.prove(this.#options);
      this.#readLane(lane).catch(() => {}); // the control stream says what is the matter
      return lane;
    })();
    return this.#lane;
  }

  async #sendPiece(number, part, offset, data) {
    const lane = await this.#openLane();
    const header = Buffer.alloc(HEADER_BYTES);
    header.writeBigUInt64BE(BigInt(this.#sequence++), 0);
    header.writeBigUInt64BE(BigInt(number), 8);
    header.writeUInt32BE(part, 16);
    header.writeBigUInt64BE(BigInt(offset), 20);
    await lane.send(joined(header, data));
  }

  async #readLane(lane) {
    for (;;) {
      const chunk = await lane.receive();
      const number = Number(chunk.readBigUInt64BE(8));
      const piece = {
        number, part: chunk.readUInt32BE(16), offset: Number(chunk.readBigUInt64BE(20)),
        data: chunk.subarray(HEADER_BYTES),
      };
      this.#taken += 1;
      if (this.#assemblies.has(number)) this.#place(piece);
      else this.#early.set(number, [...(this.#early.get(number) ?? []), piece]);
    }
  }

  #place({ number, part, offset, data }) {
    const assembly = this.#assemblies.get(number);
    data.copy(assembly.parts[part], offset);
    assembly.left -= data.length;
    if (assembly.left) return;
    this.#complete(number);
    this.#write({}).catch(() => {}); // its sender holds the bytes until it has the receipt
  }
}
