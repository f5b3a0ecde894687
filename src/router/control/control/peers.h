/* SPDX-License-Identifier: Apache-2.0 */
/* peers: gauges and the document of the peers. Control loop. */
#pragma once

struct json_out;
struct router;

void router_peers_report(const struct router *r); /* Once a second: the gauges of the peers. */
void router_peers_json(const struct router *r, struct json_out *j); /* The body of /peers; no secrets. */
