// Calls functions of server.py.    node client.mjs JOB_FILE

import { findTls, findToken, Member, NdArray, readJobFile } from "./telegrad.mjs";

const asked = { name: "node", token: findToken(), tls: findTls("node") };
const member = await Member.join({ ...readJobFile(process.argv[2]), ...asked });
const { name, rank, incarnation } = member.me;
console.log(`joined as ${name}, rank ${rank}, incarnation ${incarnation}`);

const scaled = await member.call("server", "__main__:scale", [Float32Array.of(1, 2, 3), 0.5]);
console.log("scale:", scaled.dtype, scaled.shape, [...scaled.data]);

const square = new NdArray(Float32Array.of(1, 2, 3, 4), [2, 2]);
const sums = await member.call("server", "__main__:column_sums", [], { matrix: square });
console.log("column_sums:", sums);

const big = new Float32Array(1_000_000).fill(2); // 4 MB, so by lanes, both ways
const half = await member.call("server", "__main__:scale", [big, 0.5]);
console.log("scale:", half.dtype, half.shape, half.data.every((item) => item === 1));

try {
  await member.call("server", "__main__:column_sums", ["no matrix"]);
} catch (error) {
  console.log(`${error.name} of type ${error.type}: ${error.message}`);
}
try {
  await member.call("server", "os:system", ["true"]);
} catch (error) {
  console.log(`${error.name} of type ${error.type}`);
}

await member.leave();
console.log("left");
