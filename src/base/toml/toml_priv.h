/* SPDX-License-Identifier: Apache-2.0 */
/* toml, inside: checks before toml++ sees the text. */
#pragma once
#include "base/toml/toml.h"

#define TOML_MAX_DOTS 64 /* Dots in one dotted key. */

/* True when no key of |text| has more than TOML_MAX_DOTS dots; else |*where| is the place of the dot that is
 * one too many. toml++ 3.3 makes a table for each dot without a limit and frees the tables recursively: a
 * line of dots would overflow the stack. */
bool toml_dots_are_few(struct cgn_str text, struct toml_place *where);
