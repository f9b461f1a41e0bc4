-- SPDX-License-Identifier: MIT OR Apache-2.0
-- Shows the token of weir in a TCP SYN, a segment or a UDP datagram: a field for each part, to filter by. Whether the
-- MAC is right takes the key: weir-token-verify(1) says it.
--
--   tshark -X lua_script:weir-token.lua -r capture.pcap -Y weir_token
--
-- or copy it to the plugin directory (Help, About Wireshark, Folders, Personal Lua Plugins).

-- Of datagrams: the option's number in IPv4, and in IPv6's destination options.
local IP_KIND = 30
local KIND, EXID, BYTES, EPOCH_SECONDS, EPOCH_SLACK = 254, 0x7765, 20, 64, 1

-- Of a segment whose token is about its payload.
local SEGMENT_BYTES = 16

local token = Proto("weir_token", "weir token")

local fields = {
	version = ProtoField.uint8("weir_token.version", "Version", base.DEC, nil, 0x7f),
	payload = ProtoField.bool("weir_token.payload", "About the payload", 8, nil, 0x80),
	key = ProtoField.uint8("weir_token.key", "Key id"),
	epoch = ProtoField.uint16("weir_token.epoch", "Epoch, lower half"),
	began = ProtoField.absolute_time("weir_token.epoch_time", "Epoch began", base.UTC),
	tag = ProtoField.bytes("weir_token.tag", "First bytes of the aggregate"),
	mac = ProtoField.bytes("weir_token.mac", "MAC"),
}
token.fields = fields

local experts = {
	length = ProtoExpert.new("weir_token.bad_length", "An option's length is wrong",
		expert.group.MALFORMED, expert.severity.ERROR),
	several = ProtoExpert.new("weir_token.several", "More than one token",
		expert.group.MALFORMED, expert.severity.ERROR),
	version = ProtoExpert.new("weir_token.other_version", "A version that is not known",
		expert.group.PROTOCOL, expert.severity.WARN),
	epoch = ProtoExpert.new("weir_token.other_epoch", "Of another time than the packet",
		expert.group.SEQUENCE, expert.severity.WARN),
}
token.experts = experts

local tcp_options, tcp_flags = Field.new("tcp.options"), Field.new("tcp.flags")
local udp_length = Field.new("udp.length")
local ip_header, dest_options = Field.new("ip"), Field.new("ipv6.dstopts")

-- The whole number of the epoch next to `seconds` that has this lower half, and how far
-- from it that is.
local function epoch_near(seconds, lower)
	local now = math.floor(seconds / EPOCH_SECONDS)
	local ahead = (lower - now) % 65536
	if ahead >= 32768 then
		ahead = ahead - 65536
	end
	return now + ahead, ahead
end

local function show(range, pinfo, tree)
	local subtree = tree:add(token, range)
	local is_segment = range:len() == SEGMENT_BYTES and range(4, 1):bitfield(0, 1) == 1
	if range:len() ~= BYTES and not is_segment then
		subtree:add_proto_expert_info(experts.length)
		return
	end
	local version = is_segment and range(4, 1):bitfield(1, 7) or range(4, 1):uint()
	subtree:add(fields.version, range(4, 1))
	subtree:add(fields.payload, range(4, 1))
	if version ~= 1 then
		subtree:add_proto_expert_info(experts.version)
		return
	end
	local epoch, ahead = epoch_near(pinfo.abs_ts, range(6, 2):uint())
	subtree:add(fields.key, range(5, 1))
	subtree:add(fields.epoch, range(6, 2))
	subtree:add(fields.began, range(6, 2), NSTime.new(epoch * EPOCH_SECONDS, 0)):set_generated()
	if is_segment then
		subtree:add(fields.mac, range(8, 8))
		subtree:append_text(string.format(", key %d, payload", range(5, 1):uint()))
	else
		subtree:add(fields.tag, range(8, 4))
		subtree:add(fields.mac, range(12, 8))
		subtree:append_text(string.format(", key %d, %s…", range(5, 1):uint(),
			tostring(range(8, 4):bytes()):lower()))
	end
	if math.abs(ahead) > EPOCH_SLACK then
		subtree:add_proto_expert_info(experts.epoch)
	end
end

-- Shows each token among options. `is_ipv6`: padding is 0 there and nothing the end, and
-- lengths are without kind and length.
local function walk(range, wanted, is_ipv6, pinfo, tree)
	local at, found = 0, 0
	while at < range:len() do
		local kind = range(at, 1):uint()
		if kind == 0 and not is_ipv6 then
			return
		elseif kind == (is_ipv6 and 0 or 1) then
			at = at + 1
		else
			local left = range:len() - at
			local len = left >= 2 and range(at + 1, 1):uint() or 0
			if is_ipv6 then
				len = len + 2
			end
			if len < 2 or len > left then
				return
			end
			if kind == wanted and len >= 4 and range(at + 2, 2):uint() == EXID then
				found = found + 1
				show(range(at, len), pinfo, tree)
				if found == 2 then
					tree:add_proto_expert_info(experts.several)
				end
			end
			at = at + len
		end
	end
end

function token.dissector(_, pinfo, tree)
	local options = tcp_options()
	if options then
		walk(options.range, KIND, false, pinfo, tree)
	end
	-- A SYN may have it in its IP header, as a datagram has.
	if tcp_flags() or udp_length() then
		local header = ip_header()
		if header and header.range:len() > 20 then
			walk(header.range(20), IP_KIND, false, pinfo, tree)
		end
		for _, one in ipairs({ dest_options() }) do
			walk(one.range(2), IP_KIND, true, pinfo, tree)
		end
	end
end

register_postdissector(token)
