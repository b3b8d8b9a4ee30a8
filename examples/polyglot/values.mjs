// Values to documents and back: docs/wire-format.md, "Values".
//
// A document is msgpack. Arrays stand beside it ("externals"); what msgpack lacks is an extension,
// or a list whose first item is an empty extension.

import { decode, encode, ExtData } from "@msgpack/msgpack";

const EXTERNAL = 1, BIG_INT = 2, COMPLEX = 3, ELLIPSIS = 4, UUID = 6, FUNCTION = 8, BYTEARRAY = 10;
const TUPLE = 32, SET = 33, FROZENSET = 34, DICT = 35, ORDERED_DICT = 43, BIG_BYTES = 45, BIG_BYTEARRAY = 46;
const DATACLASS = 50, SCALAR = 57;

const DTYPES = {
  "<f4": Float32Array, "<f8": Float64Array, "|i1": Int8Array, "|u1": Uint8Array,
  "<i2": Int16Array, "<u2": Uint16Array, "<i4": Int32Array, "<u4": Uint32Array,
  "<i8": BigInt64Array, "<u8": BigUint64Array, "|b1": Uint8Array,
};

/** An array: its items lie in `data` in the order of C, unless `order` is "F". */
export class NdArray {
  constructor(data, shape = [data.length], dtype = dtypeOf(data), order = "C") {
    Object.assign(this, { data, shape, dtype, order });
  }
}

/** What this client has no use for: a value of Python's, as it came. */
export class Tagged {
  constructor(code, content) {
    Object.assign(this, { code, content });
  }
}

function dtypeOf(data) {
  const found = Object.entries(DTYPES).find(([, type]) => data instanceof type);
  if (!found) throw new TypeError(`no dtype is known for ${data.constructor.name}`);
  return found[0];
}

/** Returns the parts of a message: document, externals, buffers. */
export function pack(value) {
  const lines = [], buffers = [], places = new Map();

  function lift(array) {
    if (!places.has(array)) {
      const { data, shape, dtype, order } = array instanceof NdArray ? array : new NdArray(array);
      places.set(array, lines.length);
      lines.push(["array", [dtype, order, ...shape], 1]);
      buffers.push(Buffer.from(data.buffer, data.byteOffset, data.byteLength));
    }
    const index = Buffer.alloc(4);
    index.writeUInt32BE(places.get(array));
    return new ExtData(EXTERNAL, index);
  }

  function plain(item) {
    if (item instanceof NdArray) return lift(item);
    if (ArrayBuffer.isView(item)) return item instanceof Uint8Array ? item : lift(item);
    if (Array.isArray(item)) return item.map(plain);
    if (item === null || typeof item !== "object") return item;
    return Object.fromEntries(Object.entries(item).map(([key, each]) => [key, plain(each)]));
  }

  const document = encode(plain(value), { useBigInt64: true });
  return { document, externals: lines.length ? encode(lines) : Buffer.alloc(0), buffers };
}

/** Returns the value of a message's parts. */
export function unpack({ document, externals, buffers }) {
  return read(decode(document, { useBigInt64: false }), objects(externals, buffers));
}

function objects(externals, buffers) {
  let used = 0;
  const lines = externals.length ? decode(externals) : [];
  return lines.map(([name, meta, count]) => {
    const own = buffers.slice(used, (used += count));
    if (name === "tensor") return arrayOf(meta[1], own[0]);
    if (/^(array|cupy|cuda:\d+)$/.test(name)) return arrayOf(meta, own[0]);
    return new Tagged(name, meta);
  });
}

function arrayOf([dtype, order, ...shape], buffer) {
  const aligned = new Uint8Array(buffer).buffer; // a copy: the bytes may stand anywhere
  const type = DTYPES[dtype];
  return new NdArray(type ? new type(aligned) : new Uint8Array(aligned), shape, dtype, order);
}

function read(tree, lifted) {
  if (tree instanceof ExtData) return leaf(tree.type, Buffer.from(tree.data), lifted);
  if (Array.isArray(tree)) {
    const [first, ...rest] = tree;
    if (first instanceof ExtData && first.type >= TUPLE) return compound(first.type, rest, lifted);
    return tree.map((item) => read(item, lifted));
  }
  if (tree === null || typeof tree !== "object" || tree instanceof Uint8Array) return tree;
  return Object.fromEntries(Object.entries(tree).map(([key, item]) => [key, read(item, lifted)]));
}

function leaf(code, payload, lifted) {
  switch (code) {
    case EXTERNAL: return lifted[payload.readUInt32BE()];
    case BIG_INT: return bigIntOf(payload);
    case COMPLEX: return { re: payload.readDoubleLE(0), im: payload.readDoubleLE(8) };
    case UUID: return payload.toString("hex");
    case FUNCTION: return new Tagged(code, payload.toString());
    case BYTEARRAY: return new Uint8Array(payload);
    default: return new Tagged(code, code === ELLIPSIS ? null : payload);
  }
}

function bigIntOf(payload) {
  const hex = Buffer.from(payload).reverse().toString("hex") || "00";
  return BigInt.asIntN(8 * payload.length, BigInt(`0x${hex}`));
}

function compound(code, items, lifted) {
  const values = items.map((item) => read(item, lifted));
  switch (code) {
    case TUPLE: return values;
    case SET: case FROZENSET: return new Set(values);
    case DICT: case ORDERED_DICT: return new Map(pairs(values));
    case BIG_BYTES: case BIG_BYTEARRAY: return values[0].data;
    case DATACLASS: return Object.fromEntries(pairs(values.slice(1)));
    case SCALAR: return arrayOf([values[0], "C"], values[1]).data[0];
    default: return new Tagged(code, values);
  }
}

function pairs(values) {
  return values.flatMap((key, i) => (i % 2 ? [] : [[key, values[i + 1]]]));
}
