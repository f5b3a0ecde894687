/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "policy/fleet/rack/rack.h"

#define ROUTER  "[hosts.r]\naddress = \"10.0.0.1\"\nroles = [\"router\"]\n"
#define ROUTER6 "[hosts.r]\naddress = \"fd00::1\"\nroles = [\"router\"]\n"
#define SUM     "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static struct rack *rack_of(const char *text)
{
	struct cgn_err err = {0};
	struct rack *r = NULL;
	if (!cgn_ok(rack_read("rack.toml", cgn_str_of(text), &r, &err)))
		fail_msg("%s", err.msg);
	return r;
}

static void assert_refused(const char *text, const char *why)
{
	struct cgn_err err = {0};
	struct rack *r = NULL;
	assert_int_equal(rack_read("rack.toml", cgn_str_of(text), &r, &err).code, CGN_INVALID);
	assert_null(r);
	if (strstr(err.msg, why) == NULL)
		fail_msg("%s", err.msg);
}

static void assert_has(const struct cgn_buf *text, const char *line)
{
	if (memmem(text->p, text->n, line, strlen(line)) == NULL)
		fail_msg("%.*s", (int)text->n, text->p);
}

static void test_mistakes_have_a_place(void **state)
{
	static const struct {
		const char *text, *why;
	} wrong[] = {
		{"", "rack.toml: there is no host"},
		{"[hosts.a\n", "rack.toml:1:"},
		{"[host.a]\n",
			"rack.toml:1:2: unknown key: there are [cluster], [defaults] and [hosts.NAME]"},
		{"[cluster]\nid = 1\n" ROUTER, "rack.toml:2:1: unknown key: [cluster] has name"},
		{"[hosts.a]\nroles = [\"router\"]\n", "rack.toml:1: host a: address is missing"},
		{"[hosts.a]\naddress = \"10.0.0.1\"\n", "rack.toml:1: host a: roles is missing"},
		{"[hosts.a]\naddress = \"-oProxyCommand=x\"\n", "rack.toml:2:11: must be a text of letters"},
		{"[hosts.a]\naddress = \"a b\"\n", "rack.toml:2:11: must be"},
		{"[hosts.a]\naddress = \"fd00::x\"\n",
			"rack.toml:2:11: address is not an address of IPv4 or IPv6"},
		{"[hosts.a]\naddress = \"10.0.0.1:22\"\n", "address is not an address of IPv4 or IPv6"},
		{"[hosts.a]\naddress = \"10.0.0.256\"\n", "address is not an address of IPv4 or IPv6"},
		{ROUTER6 "[hosts.s]\naddress = \"FD00:0:0::1\"\nroles = [\"store\"]\n",
			"rack.toml:4: host s has the address of host r: fd00::1"},
		{"[hosts.a]\nuser = \"-l\"\n", "rack.toml:2:8: must be"},
		{"[hosts.\"../x\"]\n", "rack.toml:1:8: a host is a table"},
		{"[hosts.\"a b\"]\n", "a name has letters"},
		{"hosts = 3\n", "rack.toml:1:1: unknown key"},
		{"[[hosts]]\n", "unknown key"},
		{"[hosts.a]\nport = 0\n", "rack.toml:2:8: port must be a whole number, 1 to 65535"},
		{"[hosts.a]\nport = \"22\"\n", "port must be"},
		{"[hosts.a]\nsudo = 1\n", "sudo must be true or false"},
		{"[hosts.a]\nroles = [\"routr\"]\n", "rack.toml:2:10: roles are"},
		{"[hosts.a]\nroles = \"router\"\n", "roles are"},
		{"[hosts.a]\nrole = [\"router\"]\n", "rack.toml:2:1: unknown key: a host has"},
		{"[defaults]\naddress = \"10.0.0.1\"\n", "unknown key: [defaults] has"},
		{"[hosts.a]\nsettings = 1\n", "settings must be a table"},
		{"[hosts.a.settings.cluster]\nname = \"x\"\n",
			"rack.toml:2:1: the inventory says this already"},
		{"[hosts.a]\naddress = \"10.0.0.2\"\nroles = [\"agent\"]\n" ROUTER,
			"host a: the role agent needs an engine"},
		{ROUTER "[hosts.s]\naddress = \"10.0.0.1\"\nroles = [\"router\"]\n",
			"rack.toml:4: host s has the address of host r"},
		{ROUTER "[hosts.s]\naddress = \"10.0.0.2\"\nroles = [\"router\"]\n",
			"2 routers share their nodes by etcd"},
		{"[hosts.a]\naddress = \"10.0.0.2\"\nroles = [\"store\"]\n", "no host has the role router"},
		{ROUTER "[hosts.s]\naddress = \"s\"\nroles = [\"etcd\"]\n[hosts.t]\naddress = \"t\"\nroles = [\"etcd\"]\n",
			"2 hosts have the role etcd: it must be an odd number"},
		{ROUTER "settings.log.level = \"a\\u0007\"\n",
			"rack.toml:4:22: a text has control characters"},
	};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(wrong); i++)
		assert_refused(wrong[i].text, wrong[i].why);
}

static void test_a_setting_of_the_inventory_is_wrong_at_its_line(void **state)
{
	struct cgn_err err = {0};
	struct cgn_buf out = {0};
	(void)state;
	struct rack *r = rack_of(ROUTER "[hosts.r.settings.router]\n\npolicy = \"fastest\"\n");
	assert_int_equal(rack_settings(r, &r->hosts[0], &out, &err).code, CGN_INVALID);
	if (strncmp(err.msg, "rack.toml:6: host r: router.policy", 34) != 0)
		fail_msg("%s", err.msg);
	cgn_buf_fini(&out);
	rack_free(&r);
}

static void test_there_may_be_so_many_hosts(void **state)
{
	struct cgn_buf text = {0};
	(void)state;
	cgn_buf_putz(&text, "[defaults]\nroles = [\"router\"]\n");
	for (int i = 0; i <= RACK_MAX_HOSTS; i++)
		cgn_buf_fmt(&text, "[hosts.h%03d]\naddress = \"10.0.0.%d\"\n", i, i);
	assert_refused(cgn_buf_z(&text), "rack.toml:259: more than 128 hosts");
	cgn_buf_fini(&text);
}

static const char several[] =
	"[cluster]\nname = \"lab\"\n[defaults]\nuser = \"op\"\nroles = [\"agent\"]\n[defaults.engine]\nkind = \"vllm\"\n"
	"[defaults.settings.kv]\nram = \"1GiB\"\n[defaults.settings.log]\nlevel = \"warn\"\n"
	"[hosts.a]\naddress = \"10.0.0.1\"\nroles = [\"router\", \"metrics\"]\nport = 2222\n"
	"settings.router.listen_grpc = \"0.0.0.0:9999\"\n"
	"[hosts.b]\naddress = \"fd00::2\"\nuser = \"root\"\n"
	"[[hosts.b.engines]]\nname = \"x\"\nurl = \"http://127.0.0.1:1\"\nextra_args = [\"--a\", \"b\"]\n"
	"[[hosts.b.engines]]\nname = \"y\"\nurl = \"http://127.0.0.1:2\"\n"
	"[hosts.b.settings.log]\nlevel = \"debug\"\n"
	"[hosts.c]\naddress = \"c.example\"\nroles = [\"agent\", \"store\"]\n";

static void test_a_host_has_what_defaults_and_roles_say(void **state)
{
	struct cgn_err err = {0};
	struct cgn_buf a = {0}, b = {0}, c = {0};
	(void)state;
	struct rack *r = rack_of(several);
	assert_int_equal(r->n, 3);
	assert_int_equal(r->hosts[0].port, 2222);
	assert_string_equal(r->hosts[0].user, "op");
	assert_string_equal(r->hosts[1].user, "root");
	assert_true(cgn_ok(rack_settings(r, &r->hosts[0], &a, &err)));
	assert_has(&a, "[router]\nlisten = \"127.0.0.1:8080\"\nlisten_grpc = \"0.0.0.0:9999\"\n");
	assert_has(&a, "scrape_routers = [\"10.0.0.1:9999\"]\n");
	assert_null(memmem(a.p, a.n, "[engine]", 8)); /* No program of that host reads it. */
	assert_null(memmem(a.p, a.n, "[kv]", 4));
	assert_true(cgn_ok(rack_settings(r, &r->hosts[1], &b, &err)));
	assert_has(&b,
		"\nengines = [{extra_args = [\"--a\", \"b\"], name = \"x\", url = \"http://127.0.0.1:1\"}, "
		"{name = \"y\", url = \"http://127.0.0.1:2\"}]\n");
	assert_has(&b, "router = \"10.0.0.1:9999\"\n");
	assert_has(&b, "listen = \"[fd00::2]:7080\"\nadvertise = \"[fd00::2]:7080\"\nnode_id = \"b\"\n");
	assert_has(&b, "level = \"debug\"\n");
	assert_true(cgn_ok(rack_settings(r, &r->hosts[2], &c, &err)));
	assert_has(&c, "[engine]\nkind = \"vllm\"\n");
	assert_has(&c, "quic_listen = \"0.0.0.0:7091\"\nadvertise = \"c.example:7091\"\nram = \"1GiB\"\n");
	cgn_buf_fini(&a);
	cgn_buf_fini(&b);
	cgn_buf_fini(&c);
	rack_free(&r);
}

static void test_addresses_of_ipv6_are_written_as_programs_read_them(void **state)
{
	struct cgn_err err = {0};
	struct cgn_buf out = {0}, etcd = {0}, ports = {0};
	(void)state;
	struct rack *r = rack_of(
		"[hosts.a]\naddress = \"FD00:0::A\"\nroles = [\"router\", \"agent\", \"store\", \"etcd\"]\n"
		"engine.url = \"http://[::1]:8000\"\nengine.kind = \"vllm\"\nsettings.router.listen_grpc = \"[::]:9190\"\n");
	assert_string_equal(r->hosts[0].address, "fd00::a");
	assert_true(cgn_ok(rack_settings(r, &r->hosts[0], &out, &err)));
	assert_has(&out, "router = \"[fd00::a]:9190\"");
	assert_has(&out, "etcd_endpoints = [\"https://[fd00::a]:2379\"]");
	assert_has(&out, "listen = \"[fd00::a]:7080\"");
	assert_has(&out, "advertise = \"[fd00::a]:7080\"");
	assert_has(&out, "quic_listen = \"[fd00::a]:7091\"");
	rack_etcd_env(r, &r->hosts[0], &etcd);
	assert_has(&etcd, "ETCD_INITIAL_CLUSTER=a=https://[fd00::a]:2380\n");
	rack_ports(&r->hosts[0], &ports);
	assert_has(&ports, "tcp 8080, tcp 9190, tcp 7080");
	cgn_buf_fini(&out);
	cgn_buf_fini(&etcd);
	cgn_buf_fini(&ports);
	rack_free(&r);
}

static void test_changed_settings_name_their_readers(void **state)
{
	static const struct {
		const char *old, *now;
		unsigned roles;
	} changes[] = {
		{"[router]\npolicy = \"kv\"\n", "[router]\npolicy = \"kv\" # same\n", 0},
		{"[router]\npolicy = \"kv\"\n", "[router]\npolicy = \"random\"\n", RACK_BIT(RACK_ROUTER)},
		{"[router]\n", "", 0},
		{"[engine]\nurl = \"a\"\n", "[[engines]]\nurl = \"a\"\n", RACK_BIT(RACK_AGENT)},
		{"[kv]\nram = 1\n", "[kv]\nram = 2\n", RACK_BIT(RACK_STORE)},
		{"[kv]\nrack = \"a\"\n", "", RACK_BIT(RACK_STORE) | RACK_BIT(RACK_AGENT)},
		{"[metrics]\nrouters = [\"a\"]\n", "[metrics]\nrouters = [\"a\", \"b\"]\n",
			RACK_BIT(RACK_METRICS)},
		{"[log]\nlevel = \"info\"\n", "", RACK_ALL & ~RACK_BIT(RACK_ETCD)},
		{"[log\n", "[log]\n", RACK_ALL & ~RACK_BIT(RACK_ETCD)},
	};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(changes); i++)
		assert_int_equal(rack_changed(cgn_str_of(changes[i].old), cgn_str_of(changes[i].now)),
			changes[i].roles);
}

static void test_a_report_is_read(void **state)
{
	static struct rack_seen s;
	struct cgn_err err = {0};
	(void)state;
	assert_true(cgn_ok(rack_report_read(
		CGN_STR("systemd yes\netcd no\netcd-data here\ninterrupted\npending cgn-agent\nunit cgn-agent enabled active\n"
			"unit etcd disabled inactive\nunit cgn-router static activating\nfile " SUM
			" /a b\ntext 5\nx\nend\n"
			"file " SUM " /c\nend\n"),
		&s, &err)));
	assert_true(s.systemd && !s.etcd && s.interrupted);
	assert_true(s.n_etcd_data == 1 && cgn_str_is(s.etcd_data[0], "here"));
	assert_int_equal(s.pending, RACK_BIT(RACK_AGENT));
	assert_int_equal(s.enabled, RACK_BIT(RACK_AGENT));
	assert_int_equal(s.active, RACK_BIT(RACK_AGENT));
	assert_int_equal(s.n, 2);
	assert_true(cgn_str_is(rack_seen_find(&s, "/a b")->text, "x\nend"));
	assert_null(rack_seen_find(&s, "/c")->text.p);
	assert_null(rack_seen_find(&s, "/d"));
}

static void test_a_report_that_is_none_is_refused(void **state)
{
	static const char *const wrong[] = {"", "systemd yes\n", "end\nx\n", "Welcome!\nend\n",
		"text 1\nx\nend\n", "file " SUM " a\nend\n", "file xyz /a\nend\n",
		"file " SUM " /a\ntext 9\nx\nend\n", "file " SUM " /a\ntext 18446744073709551615\nx\nend\n"};
	static struct rack_seen s;
	struct cgn_err err = {0};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(wrong); i++)
		assert_int_equal(rack_report_read(cgn_str_of(wrong[i]), &s, &err).code, CGN_INVALID);
}

#define ETCD(name, i) "[hosts." name "]\naddress = \"10.0.0." #i "\"\nroles = [\"etcd\"]\n"

static struct rack_member member_of(const char *name, const char *address, bool learner)
{
	struct rack_member m = {.learner = learner};
	(void)snprintf(m.name, sizeof m.name, "%s", name);
	(void)snprintf(m.peer_url, sizeof m.peer_url, "https://%s:2380", address);
	return m;
}

static void test_members_follow_the_inventory(void **state)
{
	struct rack *r =
		rack_of(ROUTER ETCD("a", 11) ETCD("b", 12) ETCD("c", 13) ETCD("d", 14) ETCD("e", 15));
	const struct rack_host *h[] = {rack_find(r, CGN_STR("a")), rack_find(r, CGN_STR("b")),
		rack_find(r, CGN_STR("c")), rack_find(r, CGN_STR("d"))};
	enum rack_etcd_data data[RACK_MAX_HOSTS] = {RACK_DATA_UNKNOWN};
	data[h[0] - r->hosts] = data[h[3] - r->hosts] = RACK_DATA_THERE;
	data[h[1] - r->hosts] = RACK_DATA_NONE;
	/* b has lost its data, c was not asked, d has another address than its member, x is not a host, e has
	 * no member and was not asked. */
	const struct rack_members all = {{member_of("a", "10.0.0.11", false),
						 member_of("b", "10.0.0.12", false),
						 member_of("c", "10.0.0.13", true),
						 member_of("d", "10.0.0.19", false),
						 member_of("", "10.0.0.18", true)},
		5};
	struct rack_moves m;
	struct cgn_err err;
	struct cgn_buf cluster = {0};
	(void)state;
	assert_true(cgn_ok(rack_moves_find(r, data, &all, &m, &err)));
	assert_int_equal(m.n_leave, 3);
	assert_true(m.leave[0] == &all.list[1] && m.leave[1] == &all.list[3] && m.leave[2] == &all.list[4]);
	assert_int_equal(m.n_join, 2);
	assert_true(m.join[0] == h[1] && m.join[1] == h[3]);
	assert_true(m.n_promote == 1 && m.promote[0] == &all.list[2]);
	/* A member that has not started yet has no name. */
	const struct rack_members two = {{member_of("a", "10.0.0.11", false),
						 member_of("", "10.0.0.12", true)},
		2};
	rack_join_cluster(&two, h[1], &cluster);
	assert_string_equal(cgn_buf_z(&cluster), "a=https://10.0.0.11:2380,b=https://10.0.0.12:2380");
	cgn_buf_fini(&cluster);
	/* The etcd of others. */
	const struct rack_members others = {{member_of("x", "10.0.0.11", false)}, 1};
	assert_int_equal(rack_moves_find(r, data, &others, &m, &err).code, CGN_CONFLICT);
	rack_free(&r);
}

static void test_what_only_a_first_start_reads_changes_nothing(void **state)
{
	(void)state;
	assert_false(rack_etcd_changed(CGN_STR("A=1\nETCD_INITIAL_CLUSTER=a\nB=2\n"),
		CGN_STR("A=1\nB=2\nETCD_INITIAL_CLUSTER=a,b\nETCD_INITIAL_CLUSTER_STATE=new\n")));
	assert_true(rack_etcd_changed(CGN_STR("A=1\nB=2\n"), CGN_STR("A=1\nB=3\n")));
	assert_true(rack_etcd_changed(CGN_STR("A=1\nB=2\n"), CGN_STR("A=1\n")));
	assert_true(rack_etcd_changed(CGN_STR(""), CGN_STR("A=1\n")));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_mistakes_have_a_place),
		cmocka_unit_test(test_a_setting_of_the_inventory_is_wrong_at_its_line),
		cmocka_unit_test(test_there_may_be_so_many_hosts),
		cmocka_unit_test(test_a_host_has_what_defaults_and_roles_say),
		cmocka_unit_test(test_addresses_of_ipv6_are_written_as_programs_read_them),
		cmocka_unit_test(test_changed_settings_name_their_readers),
		cmocka_unit_test(test_a_report_is_read),
		cmocka_unit_test(test_a_report_that_is_none_is_refused),
		cmocka_unit_test(test_members_follow_the_inventory),
		cmocka_unit_test(test_what_only_a_first_start_reads_changes_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
