/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/core/err.h"
#include "policy/fleet/settings/settings.h"
#include "policy/who/site/site.h"

static const char *const hosts[] = {"llm.example", "*.corp.example"};
static const char *const origins[] = {"https://chat.example", "https://*.corp.example", "http://[::2]:*",
	"chrome-extension://*"};
static const struct site_rules bare = {.machine = "box.lan.example", .listen = "gate.example:8080"};
static const struct site_rules listed = {.machine = "box",
	.hosts = hosts,
	.n_hosts = CGN_COUNT(hosts),
	.origins = origins,
	.n_origins = CGN_COUNT(origins),
	.near_pages = true};
static const char *const all[] = {"*"};
static const struct site_rules open_rules = {.hosts = all,
	.n_hosts = 1,
	.origins = all,
	.n_origins = 1,
	.near_pages = true};

static bool name_passes(const struct site_rules *s, const char *host, bool local)
{
	const struct site_request q = {.method = CGN_STR("GET"), .host = cgn_str_of(host), .local = local};
	return site_judge(s, &q) == SITE_FINE;
}

static void names_of_this_machine_are_known(void **state)
{
	(void)state;
	static const char *const ours[] = {"", "localhost", "localhost:8080", "LocalHost:1", "localhost.",
		"a.localhost:80", "127.0.0.1:9091", "127.0.0.1", "10.1.2.3:8080", "0.0.0.0:8080",
		"[::1]:9091", "[fe80::1]", "box", "BOX:1", "box.lan.example", "box.lan.example.:80",
		"gate.example", "gate.example:9"};
	for (size_t i = 0; i < CGN_COUNT(ours); i++)
		assert_true(name_passes(&bare, ours[i], true) && name_passes(&bare, ours[i], false));
	static const char *const others[] = {"evil.example", "evil.example:9091", "localhost.evil.example",
		"127.0.0.1.evil.example", "box.evil.example", "evilbox", "notlocalhost", "x.gate.example",
		"1.2.3.4x", "[::1", "a-localhost", "lan.example", "local", "evil.local", "evil.internal",
		"evil.svc"};
	for (size_t i = 0; i < CGN_COUNT(others); i++)
		assert_false(name_passes(&bare, others[i], true));
}

/* A page cannot have got such a name from a public name server. Nearer to the machine they may be another's. */
static void other_machines_may_use_private_names(void **state)
{
	(void)state;
	static const char *const ours[] = {"router", "router:8080", "router.ns.svc", "box.local:80",
		"router.ns.svc.cluster.local", "vm.c.project.internal"};
	for (size_t i = 0; i < CGN_COUNT(ours); i++) {
		assert_true(name_passes(&bare, ours[i], false));
		assert_false(name_passes(&bare, ours[i], true));
	}
	static const char *const others[] = {"router.ns", "evil.example", "local.example", "evil.svc.example",
		"xsvc.com", ".svc"};
	for (size_t i = 0; i < CGN_COUNT(others); i++)
		assert_false(name_passes(&bare, others[i], false));
}

static void names_may_be_listed(void **state)
{
	(void)state;
	static const char *const ours[] = {"llm.example", "LLM.example:443", "a.corp.example",
		"a.b.corp.example:1"};
	static const char *const others[] = {"corp.example", "evilcorp.example", "x.llm.example",
		"llm.example.evil.example"};
	for (size_t i = 0; i < CGN_COUNT(ours); i++) {
		assert_true(name_passes(&listed, ours[i], true));
		assert_false(name_passes(&bare, ours[i], true));
	}
	for (size_t i = 0; i < CGN_COUNT(others); i++) {
		assert_false(name_passes(&listed, others[i], true));
		assert_true(name_passes(&open_rules, others[i], true));
	}
}

static enum site_verdict page_verdict(const struct site_rules *s, const char *method, const char *host,
	const char *origin, const char *fetch_site, const char *fetch_mode)
{
	return site_judge(s,
		&(struct site_request){.method = cgn_str_of(method),
			.host = cgn_str_of(host),
			.origin = cgn_str_of(origin),
			.fetch_site = cgn_str_of(fetch_site),
			.fetch_mode = cgn_str_of(fetch_mode),
			.local = true});
}

static void pages_of_other_sites_may_not_ask(void **state)
{
	(void)state;
	static const struct {
		const char *method, *origin, *site, *mode;
		bool bare, listed;
	} rows[] = {
		{"POST", "", "", "", true, true}, /* not a browser */
		{"POST", "http://127.0.0.1:9091", "", "", true, true},
		{"POST", "https://127.0.0.1:9091", "", "", true, true},
		{"POST", "http://127.0.0.1:9092", "", "", false, true},
		{"POST", "http://127.0.0.1:9092", "cross-site", "cors", false, true},
		{"POST", "http://localhost:3000", "cross-site", "cors", false, true},
		{"POST", "http://[::1]", "cross-site", "cors", false, true},
		{"POST", "http://localhost.evil.example", "", "", false, false},
		{"POST", "http://127.0.0.1.evil.example", "", "", false, false},
		{"POST", "https://evil.example", "", "", false, false},
		{"POST", "https://evil.example", "cross-site", "no-cors", false, false},
		{"GET", "https://evil.example", "", "", false, false},
		{"POST", "https://chat.example", "cross-site", "cors", false, true},
		{"POST", "https://chat.example:444", "", "", false, false},
		{"POST", "http://chat.example", "", "", false, false},
		{"POST", "https://a.corp.example", "", "", false, true},
		{"POST", "https://evil.example/.corp.example", "", "", false, false},
		{"POST", "http://[::2]:99", "", "", false, true},
		{"POST", "chrome-extension://abc", "", "", false, true},
		{"POST", "tauri://localhost", "", "", false, true},
		{"POST", "app://obsidian.md", "", "", false, true},
		{"POST", "applet://x", "", "", false, false},
		{"POST", "null", "", "", false, false},
		{"POST", "null", "cross-site", "", false, false},
		{"POST", "://127.0.0.1:9091", "", "", false, false},
		{"POST", "", "cross-site", "no-cors", false, false},
		{"POST", "", "same-site", "no-cors", false, false},
		{"POST", "", "cross-site", "navigate", false, false},
		{"GET", "", "cross-site", "no-cors", false, false},
		{"GET", "", "cross-site", "navigate", true, true},
		{"GET", "", "none", "navigate", true, true},
		/* a proxy by https changed Host, and the browser says which page it was */
		{"POST", "https://ops.example", "same-origin", "cors", true, true},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		assert_int_equal(page_verdict(&bare, rows[i].method, "127.0.0.1:9091", rows[i].origin,
					 rows[i].site, rows[i].mode),
			rows[i].bare ? SITE_FINE : SITE_OTHER_PAGE);
		assert_int_equal(page_verdict(&listed, rows[i].method, "127.0.0.1:9091", rows[i].origin,
					 rows[i].site, rows[i].mode),
			rows[i].listed ? SITE_FINE : SITE_OTHER_PAGE);
	}
	/* To the browser it is the page's own site, once its name was pointed here. */
	assert_int_equal(page_verdict(&listed, "POST", "evil.example:9091", "http://evil.example:9091", "",
				 ""),
		SITE_OTHER_NAME);
}

static void listed_pages_may_read(void **state)
{
	(void)state;
	assert_true(site_may_read(&listed, CGN_STR("https://chat.example")));
	assert_true(site_may_read(&listed, CGN_STR("http://localhost:5173")));
	assert_false(site_may_read(&listed, CGN_STR("https://evil.example")));
	assert_false(site_may_read(&listed, CGN_STR("null")));
	assert_false(site_may_read(&listed, CGN_STR("")));
	assert_false(site_may_read(&bare, CGN_STR("http://localhost:5173")));
	assert_true(site_may_read(&open_rules, CGN_STR("https://evil.example")));
}

static bool row_loads(const char *key, const char *row)
{
	char text[256];
	struct config *c = NULL;
	struct cgn_err err = {.msg = ""};
	(void)snprintf(text, sizeof text, "[security]\n%s = ['fine.example', '%s']\n", key, row);
	if (strcmp(key, "allowed_origins") == 0)
		(void)snprintf(text, sizeof text, "[security]\n%s = ['https://fine.example', '%s']\n", key,
			row);
	bool loads = cgn_ok(settings_load("s.toml", cgn_str_of(text), NULL, NULL, 0, &c, &err));
	if (!loads)
		assert_non_null(strstr(err.msg, "s.toml:2:"));
	config_free(&c);
	return loads;
}

static void rows_of_settings_are_checked(void **state)
{
	(void)state;
	static const char *const good[] = {"*", "llm.example", "*.example", "box"};
	static const char *const bad[] = {"", "*.", "**", "a*", "*a.example", "*.a.*", "http://a.example",
		"a.example:80", "a b", "a/b"};
	for (size_t i = 0; i < CGN_COUNT(good); i++)
		assert_true(row_loads("allowed_hosts", good[i]));
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		assert_false(row_loads("allowed_hosts", bad[i]));
	static const char *const pages[] = {"*", "null", "https://a.example", "http://a.example:*",
		"https://*", "chrome-extension://*", "http://[::1]:3000"};
	static const char *const none[] = {"", "a.example", "https://", "://a", "*://a.example",
		"https://a.example/", "https://a.example/path", "https://a b", "https://u@a.example"};
	for (size_t i = 0; i < CGN_COUNT(pages); i++)
		assert_true(row_loads("allowed_origins", pages[i]));
	for (size_t i = 0; i < CGN_COUNT(none); i++)
		assert_false(row_loads("allowed_origins", none[i]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_of_this_machine_are_known),
		cmocka_unit_test(other_machines_may_use_private_names),
		cmocka_unit_test(names_may_be_listed),
		cmocka_unit_test(pages_of_other_sites_may_not_ask),
		cmocka_unit_test(listed_pages_may_read),
		cmocka_unit_test(rows_of_settings_are_checked),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
