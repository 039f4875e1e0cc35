-- Sends the bodies of files in turn: wrk -s post.lua URL -- PATH CONTENT_TYPE HEADER_LENGTH FILE…
-- HEADER_LENGTH is the length of the JSON in front of binary tensors, 0 for a body without them.
-- https://github.com/wg/wrk/blob/master/SCRIPTING

local requests = {}
local position = 0

function init(args)
  wrk.headers["Content-Type"] = args[2]
  if args[3] ~= "0" then
    wrk.headers["Inference-Header-Content-Length"] = args[3]
  end
  for index = 4, #args do
    local file = assert(io.open(args[index], "rb"))
    requests[index - 3] = wrk.format("POST", args[1], wrk.headers, file:read("*a"))
    file:close()
  end
end

function request()
  position = position % #requests + 1
  return requests[position]
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests": %d, "seconds": %.6f, "refused": %d, "broken": %d, "p50_ms": %.4f, "p99_ms": %.4f}\n',
    summary.requests, summary.duration / 1e6, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50) / 1000, latency:percentile(99) / 1000
  ))
end
