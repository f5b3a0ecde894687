/* SPDX-License-Identifier: Apache-2.0 */
/* script: limit_take and limit_settle of several buckets at once, for Redis 5 or newer. */
#include "policy/limit/limit.h"

/* Times are microseconds, which a double holds exactly until 2255. The clock is that of Redis: the routers'
 * clocks need not agree. */
const char limit_script[] =
	"local t = redis.call('TIME')\n"
	"local now = t[1] * 1000000 + t[2]\n"
	"local out, full = {1}, {}\n"
	"for i, key in ipairs(KEYS) do\n"
	"  local room, cost = tonumber(ARGV[2 * i]), tonumber(ARGV[2 * i + 1])\n"
	"  local most = room + 3600000000\n"
	"  local at = tonumber(redis.call('GET', key) or '') or now\n"
	"  local ahead = math.min(math.max(at - now, 0), most)\n"
	"  local wait = ARGV[1] == '1' and 0 or math.max(ahead + cost - room, 0)\n"
	"  if wait > 0 then out[1] = 0 end\n"
	"  full[i] = math.min(math.max(ahead + cost, 0), most)\n"
	"  out[2 * i] = ahead\n"
	"  out[2 * i + 1] = wait\n"
	"end\n"
	"if out[1] == 0 then return out end\n"
	"for i, key in ipairs(KEYS) do\n"
	"  out[2 * i] = full[i]\n"
	"  if full[i] > 0 then\n"
	"    redis.call('SET', key, string.format('%.0f', now + full[i]), 'PX', math.ceil(full[i] / 1000))\n"
	"  else\n"
	"    redis.call('DEL', key)\n"
	"  end\n"
	"end\n"
	"return out\n";
