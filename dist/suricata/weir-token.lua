-- SPDX-License-Identifier: MIT OR Apache-2.0
-- For Suricata 8: does the SYN of a TCP connection prove which program began it? The rules of weir-token.rules ask this
-- script, each for the verdict that its `msg` names. Suricata 7 has Lua 5.1, which cannot read this file: it has no
-- integers of 64 bits.
--
-- Fill in the settings. Who can read this file then can sign as any of these programs: give it root's and Suricata's group,
-- and mode 0640. `suricata -T` says if a setting is wrong.

-- By the id of a key, its `secret` of /etc/weir/token-keys/ID.key.
local SECRETS = {
	-- [1] = "64 hexadecimal digits",
}
-- The programs whose tokens are right: `aggregate` of `weir app list --programs --json`.
local AGGREGATES = {
	-- "64 hexadecimal digits",
}
-- How many epochs of 64 seconds the clock of the sender may be from this one's.
local EPOCH_SLACK = 1
-- Connections of which is remembered whose SYN would be a replay: the last ones, up to twice as many. Suricata lets a
-- script have 500,000 bytes (`security.lua.max-bytes`), which do for 600.
local CONNECTIONS = 600

local packet_lib = require("suricata.packet")
local hashlib = require("suricata.hashlib")
local rule_lib = require("suricata.rule")

local TCP_KIND, IP_KIND, EXID, TOKEN_BYTES, VERSION, EPOCH_SECONDS = 254, 30, "\x77\x65", 20, 1, 64
-- Of IPv6: headers that are gone through, and bytes of destination options that are looked through.
local CHAIN, EXTENSION_MOST = 6, 62

local VERDICTS = {
	["valid"] = true, ["missing"] = true, ["malformed"] = true, ["shortened"] = true, ["other-version"] = true,
	["unknown-key"] = true, ["other-epoch"] = true, ["not-named"] = true, ["wrong-mac"] = true, ["replayed"] = true,
}

local function bytes_of_hex(text, what)
	if type(text) ~= "string" or #text ~= 64 or text:find("%X") then
		error("weir-token.lua: " .. what .. " is wrong; allowed: 64 hexadecimal digits")
	end
	return (text:gsub("%x%x", function(digits)
		return string.char(tonumber(digits, 16))
	end))
end

local function xor_each(text, with)
	return (text:gsub(".", function(one)
		return string.char(one:byte() ~ with)
	end))
end

-- HMAC-SHA256 with a key of 32 bytes.
local function hmac(key, text)
	local block = key .. ("\0"):rep(32)
	local inner = hashlib.sha256_digest(xor_each(block, 0x36) .. text)
	return hashlib.sha256_digest(xor_each(block, 0x5c) .. inner)
end

local function rotate(word, bits)
	return (word << bits) | (word >> (64 - bits))
end

local function sip_round(a, b, c, d)
	a, c = a + b, c + d
	b, d = rotate(b, 13) ~ a, rotate(d, 16) ~ c
	a, c = rotate(a, 32) + d, c + b
	b, d = rotate(b, 17) ~ c, rotate(d, 21) ~ a
	return a, b, rotate(c, 32), d
end

-- SipHash-2-4 of whole words of eight bytes.
local function sip_hash(key, text)
	local k0, k1 = string.unpack("<i8i8", key)
	local a, b = k0 ~ 0x736f6d6570736575, k1 ~ 0x646f72616e646f6d
	local c, d = k0 ~ 0x6c7967656e657261, k1 ~ 0x7465646279746573
	for at = 1, #text, 8 do
		local word = string.unpack("<i8", text, at)
		d = d ~ word
		a, b, c, d = sip_round(a, b, c, d)
		a, b, c, d = sip_round(a, b, c, d)
		a = a ~ word
	end
	local last = #text << 56
	d = d ~ last
	a, b, c, d = sip_round(a, b, c, d)
	a, b, c, d = sip_round(a, b, c, d)
	a, c = a ~ last, c ~ 0xff
	for _ = 1, 4 do
		a, b, c, d = sip_round(a, b, c, d)
	end
	return string.pack("<i8", a ~ b ~ c ~ d)
end

-- By the id of a key, and by the first four bytes of an aggregate, the key of that program.
local program_keys = {}

if math.type(EPOCH_SLACK) ~= "integer" or EPOCH_SLACK < 0 or EPOCH_SLACK > 1000 then
	error("weir-token.lua: EPOCH_SLACK is wrong; allowed: 0 to 1000")
end
if math.type(CONNECTIONS) ~= "integer" or CONNECTIONS < 1 or CONNECTIONS > 1000000 then
	error("weir-token.lua: CONNECTIONS is wrong; allowed: 1 to 1000000")
end
if next(SECRETS) == nil or next(AGGREGATES) == nil then
	error("weir-token.lua: SECRETS or AGGREGATES is empty: fill in a key and a program")
end
for id, secret in pairs(SECRETS) do
	if math.type(id) ~= "integer" or id < 1 or id > 255 then
		error("weir-token.lua: the id of a secret is wrong; allowed: 1 to 255")
	end
	secret = bytes_of_hex(secret, "a secret")
	program_keys[id] = {}
	for _, aggregate in ipairs(AGGREGATES) do
		aggregate = bytes_of_hex(aggregate, "an aggregate")
		local tag = aggregate:sub(1, 4)
		-- The first one of those that a tag means.
		program_keys[id][tag] = program_keys[id][tag]
			or hmac(secret, "weir token 1 identity" .. string.char(id) .. aggregate):sub(1, 16)
	end
end

-- The token among options, nil if there is none, and whether they contradict themselves. `is_ipv6`: padding is 0 there and
-- nothing the end, and lengths are without kind and length.
local function find_token(options, wanted, is_ipv6)
	local at, found = 1, nil
	while at <= #options do
		local kind, length = options:byte(at, at + 1)
		if kind == 0 and not is_ipv6 then
			break
		elseif kind == (is_ipv6 and 0 or 1) then
			at = at + 1
		else
			length = (length or -2) + (is_ipv6 and 2 or 0)
			if length < 2 or length > #options - at + 1 then
				return nil, true
			end
			if kind == wanted and length >= 4 and options:sub(at + 2, at + 3) == EXID then
				if found or length ~= TOKEN_BYTES then
					return nil, true
				end
				found = options:sub(at, at + length - 1)
			end
			at = at + length
		end
	end
	return found, false
end

-- An address as Suricata writes it: in either form of IPv6.
local function bytes_of_address(text)
	if not text:find(":", 1, true) then
		return (text:gsub("(%d+)%.?", function(part)
			return string.char(tonumber(part))
		end))
	end
	local function words(part)
		return (part:gsub("(%x+):?", function(word)
			return string.pack(">I2", tonumber(word, 16))
		end))
	end
	local head, tail = text:match("^(.-)::(.*)$")
	if not head then
		return words(text)
	end
	head, tail = words(head), words(tail)
	return head .. ("\0"):rep(16 - #head - #tail) .. tail
end

-- A header of IPv6 that stands before another one: hop-by-hop options, routing, a fragment, destination options.
local EXTENSIONS = { [0] = true, [43] = true, [44] = true, [60] = true }

-- The segment of a packet: what counts of it, or nil if it is none, a later part of one, or if too little was captured. And
-- whether its receiver may read one where this does not: the first part of several, or behind more headers.
local function read_segment(packet)
	local version, source, dest = packet:tuple()
	if version ~= 4 and version ~= 6 then
		return nil
	end
	-- Where the IP header begins depends on the link; the addresses say it.
	local data = packet:packet()
	local addresses = bytes_of_address(source) .. bytes_of_address(dest)
	local at = data:find(addresses, 1, true)
	if not at then
		return nil
	end
	at = at - (version == 4 and 12 or 8)
	local length = string.unpack(">I2", data, at + 2)
	if version == 6 then
		length = 40 + string.unpack(">I2", data, at + 4)
	end
	local segment = { is_cut = at + length - 1 > #data }
	-- Behind its length is what the link has filled up; a superpacket may say none.
	if length >= (version == 4 and 20 or 41) then
		data = data:sub(1, at + length - 1)
	end
	local prefix, transport
	local is_part = false
	if version == 4 then
		local words = data:byte(at) & 15
		local part = string.unpack(">I2", data, at + 6)
		if words < 5 or part & 0x1fff ~= 0 or data:byte(at + 9) ~= 6 then
			return nil
		end
		is_part = part & 0x2000 ~= 0
		transport = at + words * 4
		if transport - 1 > #data then
			return nil, not segment.is_cut
		end
		segment.ip_token, segment.ip_is_wrong = find_token(data:sub(at + 20, transport - 1), IP_KIND, false)
		prefix = ("\0"):rep(10) .. "\xff\xff"
	else
		local next_header, options = data:byte(at + 6), ""
		transport = at + 40
		for _ = 1, CHAIN do
			if not EXTENSIONS[next_header] then
				break
			end
			local after, units, offset, more = data:byte(transport, transport + 3)
			if not more then
				return nil, not segment.is_cut
			end
			if next_header == 44 then
				if offset ~= 0 or more & 0xf8 ~= 0 then
					return nil
				end
				-- That of a whole packet (RFC 6946) is no part.
				is_part = is_part or more & 1 ~= 0
				units = 0
			end
			if transport + (units + 1) * 8 - 1 > #data then
				return nil, not segment.is_cut
			end
			local follows = transport + (units + 1) * 8
			if next_header == 60 and after == 6 then
				options = data:sub(transport + 2, follows - 1)
			end
			next_header, transport = after, follows
		end
		if EXTENSIONS[next_header] then
			return nil, true
		end
		if next_header ~= 6 then
			return nil
		end
		if #options <= EXTENSION_MOST then
			segment.ip_token, segment.ip_is_wrong = find_token(options, IP_KIND, true)
		end
		prefix = ""
	end
	local tcp = data:sub(transport)
	if #tcp < 20 then
		return nil, not segment.is_cut
	end
	if is_part then
		return nil, true
	end
	segment.is_syn = tcp:byte(14) & 0x12 == 0x02
	local header = (tcp:byte(13) >> 4) * 4
	if header >= 20 and header <= #tcp then
		segment.options = tcp:sub(21, header)
	end
	segment.isn = tcp:sub(5, 8)
	local half = #addresses // 2
	segment.ends = prefix .. addresses:sub(1, half) .. prefix .. addresses:sub(half + 1) .. tcp:sub(1, 4)
	return segment
end

-- The word for what a SYN proves, as `weir token verify` has it.
local function judge(syn, seconds)
	if not syn.options then
		return syn.is_cut and "shortened" or "malformed"
	end
	local token, is_wrong = find_token(syn.options, TCP_KIND, false)
	if not token then
		token, is_wrong = syn.ip_token, is_wrong or syn.ip_is_wrong
	end
	if is_wrong then
		return "malformed"
	elseif not token then
		return "missing"
	end
	local version, id, lower = string.unpack(">BBI2", token, 5)
	if version ~= VERSION then
		return "other-version"
	end
	local keys = program_keys[id]
	if not keys then
		return "unknown-key"
	end
	local now = math.tointeger(seconds // 1) // EPOCH_SECONDS
	local ahead = (lower - now) & 0xffff
	if ahead >= 0x8000 then
		ahead = ahead - 0x10000
	end
	if ahead > EPOCH_SLACK or -ahead > EPOCH_SLACK then
		return "other-epoch"
	end
	local key = keys[token:sub(9, 12)]
	if not key then
		return "not-named"
	end
	local head = string.pack(">BBBB", VERSION, id, 6, 0)
	local mac = sip_hash(key, head .. syn.isn .. string.pack(">i8", now + ahead) .. syn.ends .. ("\0"):rep(4))
	return mac == token:sub(13) and "valid" or "wrong-mac"
end

-- By the ends of a connection whose SYN was valid, the number of that SYN, and behind it a mark if the client has sent more
-- since. When the first table is full the second one goes, and the first takes its place.
local recent, older, recent_count = {}, {}, 0
local USED = "+"

local function remember(ends, what)
	if recent[ends] == nil then
		if recent_count == CONNECTIONS then
			recent, older, recent_count = {}, recent, 0
		end
		recent_count = recent_count + 1
	end
	recent[ends] = what
end

-- Marks the connection of a segment that is no SYN.
local function note_segment(segment)
	local known = recent[segment.ends] or older[segment.ends]
	if known and #known == 4 then
		remember(segment.ends, known .. USED)
	end
end

-- A valid SYN that comes again is sent again, unless the client has sent more behind it.
local function is_replay(syn)
	local known = recent[syn.ends] or older[syn.ends]
	if known == syn.isn .. USED then
		return true
	end
	if known ~= syn.isn then
		remember(syn.ends, syn.isn)
	end
	return false
end

function init(_)
	return { packet = true }
end

function match(_)
	local packet = packet_lib.get()
	local segment, is_unread = read_segment(packet)
	if not segment and not is_unread then
		return 0
	end
	if segment and not segment.is_syn then
		note_segment(segment)
		return 0
	end
	local verdict = segment and judge(segment, (packet:timestamp())) or "malformed"
	local wanted = rule_lib.get_rule():msg():match("weir token: ([%l-]+)")
	if wanted and not VERDICTS[wanted] then
		error("weir-token.lua: no verdict is " .. wanted)
	end
	if verdict == "valid" and is_replay(segment) then
		verdict = "replayed"
	end
	-- A rule that names none is for all that are not right.
	if wanted == verdict or (not wanted and verdict ~= "valid") then
		return 1
	end
	return 0
end
