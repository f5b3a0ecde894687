/* SPDX-License-Identifier: Apache-2.0 */
/* policy: a router's policy and weights as text and as JSON. */
#pragma once
#include "base/core/buf.h"
#include "base/json/json.h"
#include "cognitora/v1/control.pb-c.h"

/* Append lines of text. */
void ctl_policy_text(const Cognitora__V1__PolicyStatus *s, struct cgn_buf *out);
/* Write a JSON object. */
void ctl_policy_json(const Cognitora__V1__PolicyStatus *s, struct json_out *o);
