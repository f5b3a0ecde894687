/* SPDX-License-Identifier: Apache-2.0 */
#include "io_quic_world.h"

static void bytes_go_both_ways(void **state)
{
	(void)state;
	struct world w;
	world_open(&w, NULL);
	world_dial(&w, NULL);
	run_until(&w, both_open);
	assert_true(cgn_str_is(quic_conn_peer_name(w.client.c), "node-1"));
	assert_true(cgn_str_is(quic_conn_peer_name(w.server.c), "node-1"));
	struct flow *f = flow_open(&w, 1);
	flow_ask(f, 100000, 3000);
	run_until(&w, flows_done);
	world_close(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_go_both_ways),
	};
	return cmocka_run_group_tests(tests, make_tls, drop_tls);
}
