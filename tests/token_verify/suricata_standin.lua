-- SPDX-License-Identifier: MIT OR Apache-2.0
-- A small stand-in for Suricata 8: runs a script of a rule in a sandbox as it does (the
-- functions that are allowed, the limit of instructions), on each packet of a pcap of Ethernet. Prints the number of each
-- packet with the one verdict that the script has for it.
--
--   lua5.4 suricata_standin.lua SCRIPT CAPTURE PREFIX VERDICT...
--
-- It decodes nothing: unlike Suricata it asks about packets that are cut, too. Against the real program the same test runs where
-- there is one.

local script, capture, prefix = arg[1], arg[2], arg[3]
local INSTRUCTIONS = 500000

-- FIPS 180-4. The first 32 bits of the fractions of the roots of primes are reckoned, not copied.
local K, H0 = {}, {}
do
	local prime, found = 2, 0
	local function fraction(root)
		return math.floor((root % 1) * 4294967296.0)
	end
	while found < 64 do
		local is_prime = true
		for divisor = 2, math.floor(prime ^ 0.5) do
			is_prime = is_prime and prime % divisor ~= 0
		end
		if is_prime then
			found = found + 1
			-- Newton's step makes the last bits of the cube root right.
			local root = prime ^ (1 / 3)
			root = root - (root * root * root - prime) / (3 * root * root)
			K[found] = fraction(root)
			H0[found] = found <= 8 and fraction(prime ^ 0.5) or nil
		end
		prime = prime + 1
	end
end

local function sha256(text)
	local function rotate(word, bits)
		return ((word >> bits) | (word << (32 - bits))) & 0xffffffff
	end
	local h = table.move(H0, 1, 8, 1, {})
	local padded = text .. "\x80" .. ("\0"):rep((55 - #text) % 64) .. string.pack(">I8", #text * 8)
	for block = 1, #padded, 64 do
		local w = { string.unpack(">" .. ("I4"):rep(16), padded, block) }
		for n = 17, 64 do
			local x, y = w[n - 15], w[n - 2]
			local s0 = rotate(x, 7) ~ rotate(x, 18) ~ (x >> 3)
			local s1 = rotate(y, 17) ~ rotate(y, 19) ~ (y >> 10)
			w[n] = (w[n - 16] + s0 + w[n - 7] + s1) & 0xffffffff
		end
		local a, b, c, d, e, f, g, i = table.unpack(h)
		for n = 1, 64 do
			local s1 = rotate(e, 6) ~ rotate(e, 11) ~ rotate(e, 25)
			local t1 = i + s1 + ((e & f) ~ (~e & g)) + K[n] + w[n]
			local s0 = rotate(a, 2) ~ rotate(a, 13) ~ rotate(a, 22)
			local t2 = s0 + ((a & b) ~ (a & c) ~ (b & c))
			i, g, f, e, d, c, b, a = g, f, e, (d + t1) & 0xffffffff, c, b, a, (t1 + t2) & 0xffffffff
		end
		for n, word in ipairs({ a, b, c, d, e, f, g, i }) do
			h[n] = (h[n] + word) & 0xffffffff
		end
	end
	return string.pack(">" .. ("I4"):rep(8), table.unpack(h))
end

local function hex(text)
	return (text:gsub(".", function(one)
		return ("%02x"):format(one:byte())
	end))
end
assert(hex(sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
assert(hex(sha256(("a"):rep(64))) == "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb")

-- The packet and the message of the rule that the script is asked about.
local now = {}

local packet = {}
packet.__index = packet
function packet:packet()
	return self.bytes
end
function packet:timestamp()
	return self.seconds + 0.0, self.micros + 0.0
end
function packet:tuple()
	local version = #self.bytes > 14 and self.bytes:byte(15) >> 4 or 0
	if #self.bytes < 14 + (version == 4 and 20 or 40) then
		return 0
	elseif version == 4 then
		local function address(at)
			return ("%d.%d.%d.%d"):format(self.bytes:byte(at, at + 3))
		end
		return 4, address(27), address(31), self.bytes:byte(24), 0, 0
	end
	local function address(at)
		return (("%04x:"):rep(8):sub(1, -2)):format(string.unpack(">" .. ("I2"):rep(8), self.bytes, at))
	end
	return 6, address(23), address(39), 6, 0, 0
end

local libraries = {
	["suricata.packet"] = {
		get = function()
			return setmetatable(now.packet, packet)
		end,
	},
	["suricata.hashlib"] = { sha256_digest = sha256 },
	["suricata.rule"] = {
		get_rule = function()
			return {
				msg = function()
					return now.msg
				end,
			}
		end,
	},
}

-- What the documentation says is allowed.
local env = { table = table, string = string, math = math, utf8 = utf8 }
for name in
	("assert ipairs next pairs print rawequal rawlen select tonumber tostring type rawget rawset error"):gmatch("%l+")
do
	env[name] = _G[name]
end
env._G = env
function env.require(name)
	return libraries[name] or error("module not found: " .. name)
end

local function limited(call, ...)
	local spent = 0
	debug.sethook(function()
		spent = spent + 100
		assert(spent <= INSTRUCTIONS, "instruction limit exceeded")
	end, "", 100)
	local result = call(...)
	debug.sethook()
	return result
end

assert(loadfile(script, "t", env))()
assert(env.init({}).packet, "the script does not ask for packets")

local file = assert(io.open(capture, "rb")):read("a")
assert(file:sub(1, 4) == "\xd4\xc3\xb2\xa1" and string.unpack("<I4", file, 21) == 1, "pcap of Ethernet, microseconds")
local at, number = 25, 0
while at <= #file do
	local seconds, micros, length = string.unpack("<I4I4I4", file, at)
	number = number + 1
	now.packet = { bytes = file:sub(at + 16, at + 15 + length), seconds = seconds, micros = micros }
	at = at + 16 + length
	local found = {}
	for n = 4, #arg do
		now.msg = prefix .. arg[n]
		if limited(env.match, {}) == 1 then
			found[#found + 1] = arg[n]
		end
	end
	assert(#found <= 1, "two verdicts")
	now.msg = "another message"
	local is_wrong = found[1] ~= nil and not found[1]:find("^valid")
	assert((limited(env.match, {}) == 1) == is_wrong, "a rule without a verdict is for all that are wrong")
	print(number, found[1] or "-")
end
