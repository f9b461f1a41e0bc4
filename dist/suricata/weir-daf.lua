-- SPDX-License-Identifier: MIT OR Apache-2.0
-- For Suricata 8: has a TCP segment over IPv4 the signature of DAF (option 0x5e of 34 bytes, HMAC-SHA256 of the payload)? The
-- rules of weir-daf.rules ask this script, each for the verdict that its `msg` names. A right signature proves a key and the
-- payload, and nothing else: who has seen a segment can send it again, from anywhere and at any time.
--
-- Fill in the key. Who can read this file then can sign: give it root's and Suricata's group, and mode 0640.

-- The bytes of the file that DAF's -s names, its last line break ("\n") with them.
local SECRET = ""

local packet_lib = require("suricata.packet")
local hashlib = require("suricata.hashlib")
local rule_lib = require("suricata.rule")

local OPTION, OPTION_BYTES = 0x5e, 34

local VERDICTS = {
	["valid"] = true, ["valid-without-data"] = true, ["missing"] = true, ["malformed"] = true, ["wrong-mac"] = true,
	["shortened"] = true,
}

if #SECRET < 1 or #SECRET > 4096 then
	error("weir-daf.lua: SECRET is wrong; allowed: 1 to 4096 bytes")
end

local function xor_each(text, with)
	return (text:gsub(".", function(one)
		return string.char(one:byte() ~ with)
	end))
end

local block = #SECRET > 64 and hashlib.sha256_digest(SECRET) or SECRET
block = block .. ("\0"):rep(64 - #block)
local INNER, OUTER = xor_each(block, 0x36), xor_each(block, 0x5c)

-- The word for a packet, as `weir token verify --daf` has it; nil: it is no segment of TCP over IPv4, or a part of one.
local function judge(packet)
	local version, source, dest = packet:tuple()
	if version ~= 4 then
		return nil
	end
	local data = packet:packet()
	local addresses = (source .. "." .. dest):gsub("(%d+)%.?", function(part)
		return string.char(tonumber(part))
	end)
	-- Where the IP header begins depends on the link; the addresses say it.
	local at = data:find(addresses, 1, true)
	if not at then
		return nil
	end
	local ip = data:sub(at - 12)
	local header, length = math.max((ip:byte(1) & 15) * 4, 20), string.unpack(">I2", ip, 3)
	if string.unpack(">I2", ip, 7) & 0x3fff ~= 0 or ip:byte(10) ~= 6 then
		return nil
	end
	local is_cut = length > #ip
	-- Behind its length is what the link has filled up.
	ip = ip:sub(1, length)
	local tcp = ip:sub(header + 1)
	if #tcp < 20 then
		return nil
	end
	local options = ip:sub(21, header)
	if options:byte(1) ~= OPTION then
		return "missing"
	elseif options:byte(2) ~= OPTION_BYTES or #options < OPTION_BYTES then
		return "malformed"
	elseif is_cut then
		return "shortened"
	end
	local begin = (tcp:byte(13) >> 4) * 4
	if begin < 20 or begin > #tcp then
		return "malformed"
	end
	local payload = tcp:sub(begin + 1)
	local mac = hashlib.sha256_digest(OUTER .. hashlib.sha256_digest(INNER .. payload))
	if mac ~= options:sub(3, OPTION_BYTES) then
		return "wrong-mac"
	end
	return payload == "" and "valid-without-data" or "valid"
end

function init(_)
	return { packet = true }
end

function match(_)
	local verdict = judge(packet_lib.get())
	local wanted = rule_lib.get_rule():msg():match("weir daf: ([%l-]+)")
	if wanted and not VERDICTS[wanted] then
		error("weir-daf.lua: no verdict is " .. wanted)
	end
	-- A rule that names none is for all that are not right.
	local is_wrong = verdict and not verdict:find("^valid")
	if (wanted and wanted == verdict) or (not wanted and is_wrong) then
		return 1
	end
	return 0
end
