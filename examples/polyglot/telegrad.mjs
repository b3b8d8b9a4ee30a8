// A member of a telegrad job, in Node: joins, calls exposed functions, leaves.

import crypto from "node:crypto";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { Session } from "./stream.mjs";
import { pack, unpack } from "./values.mjs";

export { NdArray } from "./values.mjs";

/** An exception that a function raised on a worker; `type` is its class, `module:name`. */
export class RemoteError extends Error {
  constructor({ type, message, traceback = "" }) {
    super(message);
    Object.assign(this, { name: "RemoteError", type, traceback });
  }
}

/** Finds the token where telegrad's own workers do. */
export function findToken(environment = process.env) {
  if (environment.TELEGRAD_TOKEN) return Buffer.from(environment.TELEGRAD_TOKEN.trim());
  const own = path.join(os.homedir(), ".config", "telegrad", "token");
  return Buffer.from(fs.readFileSync(environment.TELEGRAD_TOKEN_FILE ?? own, "utf8").trim());
}

/** Reads the certificates of the job where it has some; `telegrad certs` makes them. */
export function findTls(name, environment = process.env) {
  if (!environment.TELEGRAD_TLS_CA) return undefined;
  const read = (what) =>
    fs.readFileSync(environment[`TELEGRAD_TLS_${what}`].replaceAll("{name}", name));
  return { ca: read("CA"), certificate: read("CERTIFICATE"), key: read("KEY") };
}

/**
 * Reads the file that rank 0 of a job with init_method="file:///..." has written: it says where the job's
 * coordinator listens. The job's name is in TELEGRAD_JOB, as on its other workers.
 */
export function readJobFile(file) {
  const lines = fs.readFileSync(file, "utf8").split("\n").map((line) => line.split(" "));
  const field = (name) => lines.find(([key]) => key === name).slice(1).join(" ");
  return { endpoint: field("endpoint"), job: process.env.TELEGRAD_JOB ?? "default" };
}

/** Requests and replies on one session. */
class Caller {
  #session;
  #calls = 0;
  #pending = new Map();

  static async open(endpoint, options) {
    const caller = new Caller();
    caller.me = options.me;
    caller.#session = await Session.open(endpoint, {
      ...options,
      onEnvelope: (envelope) => caller.#onEnvelope(envelope),
      onLost: (error) => caller.#onLost(error),
    });
    return caller;
  }

  request(kind, value, seconds) {
    const call = ++this.#calls;
    const parts = pack(value); // first: what cannot travel fails before anything is sent
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#pending.delete(call);
        this.#tell("rpc.expire", call);
        reject(new Error(`${kind} took longer than ${seconds} s`));
      }, seconds * 1000);
      this.#pending.set(call, { resolve, reject, timer });
      this.#session.post({ kind, call, timeLeft: seconds, ...parts }).catch(reject);
    });
  }

  close(reason) {
    return this.#session.close(reason);
  }

  #tell(kind, value) {
    this.#session.post({ kind, ...pack(value) }).catch(() => {});
  }

  #onEnvelope({ kind, call, reply, ...parts }) {
    if (!reply) {
      if (call) this.#refuse(kind, call);
      return; // what the coordinator tells of others, for instance
    }
    const waiting = this.#pending.get(call);
    if (!waiting) return;
    this.#pending.delete(call);
    clearTimeout(waiting.timer);
    const value = unpack(parts);
    if (kind.endsWith(".error")) waiting.reject(new RemoteError(value));
    else waiting.resolve(value);
  }

  #refuse(kind, call) {
    const message = `${this.me.name} serves no ${kind}`;
    const told = { error: null, type: "telegrad.errors:DecodeError", message, traceback: "" };
    const body = { ...told, worker: this.me.name, pid: process.pid };
    this.#session.post({ kind: "rpc.error", call, reply: true, ...pack(body) }).catch(() => {});
  }

  #onLost(error) {
    for (const { reject, timer } of this.#pending.values()) {
      clearTimeout(timer);
      reject(error);
    }
    this.#pending.clear();
  }
}

/** A place in a job that has started. */
export class Member {
  #common;
  #line;
  #workers = new Map();
  #members = [];

  /** Joins on top of a job's workers, under a name that is free. */
  static async join({ endpoint, job, token, tls, name, seconds = 60 }) {
    const member = new Member();
    const incarnation = (crypto.randomBytes(8).readBigUInt64BE() >> 2n).toString();
    const own = `store.-1.${BigInt(incarnation).toString(16)}.${name}`;
    const line = { name: own, rank: -1, incarnation };
    const coordinator = { name: "coordinator" };
    const common = { job, token, tls };
    member.#line = await Caller.open(endpoint, { ...common, me: line, expected: coordinator });
    const ask = (kind, value) => member.#line.request(kind, value, seconds);
    try {
      const place = await ask("member.reserve", { name });
      const drawn = await ask("store.add", { key: "telegrad/incarnation", amount: 1 });
      member.me = { name: place.name, rank: place.rank, incarnation: drawn };
      const told = { ...place, incarnation: drawn, endpoints: [], control: [] };
      member.#members = (await ask("member.join", told)).members;
      member.#common = { ...common, me: member.me };
      return member;
    } catch (error) {
      await member.#line.close("joining failed");
      throw error;
    }
  }

  /** Calls a function by name, `module:qualname`; the callee decides whether it may be called. */
  async call(worker, func, args = [], kwargs = {}, seconds = 60) {
    const caller = await this.#worker(worker);
    return caller.request("rpc.call", { func, args, kwargs }, seconds);
  }

  /** Leaves the workers, then the job. */
  async leave(reason = "done") {
    for (const caller of this.#workers.values()) await (await caller).close(reason);
    await this.#line.request("member.leave", { reason }, 10);
    await this.#line.close(reason);
  }

  #worker(name) {
    if (!this.#workers.has(name)) {
      const found = this.#members.find(([known]) => known === name);
      if (!found) throw new Error(`no worker ${name} in this job`);
      const [, , incarnation, endpoints] = found;
      const expected = { name, incarnation };
      const endpoint = endpoints.find((each) => /^grpcs?:/.test(each));
      if (!endpoint) throw new Error(`worker ${name} has no TCP port`);
      this.#workers.set(name, Caller.open(endpoint, { ...this.#common, expected }));
    }
    return this.#workers.get(name);
  }
}
