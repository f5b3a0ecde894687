/* SPDX-License-Identifier: Apache-2.0 */
/* page: the page for operators, which admin ports serve under /page/: HTML, style and script, built into the program.
 * It loads nothing from elsewhere, keeps nothing, and reads the JSON of the admin port by relative paths, so that it
 * works behind a proxy with a path of its own. The Content-Security-Policy forbids everything else. */
#pragma once
#include "joint/daemon/svc/svc.h"

/* The route {"GET", "/page/ *"} (without the space). |state| is not used. */
void page_get(void *state, const struct http_head *h, struct cgn_str body, struct svc_admin_reply *reply);
/* The same for cgn-metrics, whose page is of several routers: it asks /routers and /routers/NAME/PATH. */
void page_get_of_several(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply);
/* Answer a browser that asks for the admin port's root by sending it to the page. Returns false, and does nothing,
 * when the request does not name text/html in Accept. */
bool page_redirect(const struct http_head *h, struct svc_admin_reply *reply);
