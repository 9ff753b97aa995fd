"""Needles: invented statements of one sentence, each with a question that it answers. No two are about the same matter."""

_LINES = """
    The lighthouse keeper of Brannock Point feeds two tame foxes every evening. | Who feeds foxes in the evening?
    Aunt Matilda hid her wedding ring inside the blue sugar bowl. | Where is the wedding ring hidden?
    The night train to Odessa leaves from platform nine at half past eleven. | When does the train to Odessa leave?
    Pears from the monastery garden are pickled in honey and thyme. | What are the pears pickled in?
    The mayor of Dunvale keeps bees on the roof of the town hall. | What animals does the mayor keep?
    A violin made by Hartwig was sold for ninety thousand crowns. | How much was the violin sold for?
    Doctor Okafor prescribes walking barefoot in wet grass against headaches. | What helps against headaches?
    The oldest oak of the valley was struck by lightning in 1874. | When did lightning strike the oak tree?
    Captain Ruiz named his fishing boat after his grandmother Esperanza. | What is the name of the fishing boat?
    The bakery on Mill Street sells walnut bread only on Thursdays. | On which day can I buy walnut bread?
    Snow fell on the palm trees of Larnaca last April. | Where did it snow on palm trees?
    The champion of the chess club lost to a girl of eight years. | Who defeated the chess champion?
    Mrs. Lindqvist paints her front door a new colour each spring. | What does Mrs. Lindqvist paint?
    The museum in Torsby shows a meteorite that weighs four tons. | How heavy is the meteorite in the museum?
    Goats have eaten the curtains of the village school. | What happened to the curtains of the school?
    The sultan's cook seasons lamb with dried apricots and cinnamon. | How does the cook season lamb?
    Penguins at the zoo of Graz refuse to eat frozen herring. | What do the penguins refuse to eat?
    The bridge over the Tamsin was closed because of rust. | Why was the bridge closed?
    Professor Adeyemi collects umbrellas that were left in trams. | What does Professor Adeyemi collect?
    The football team of Kirkwall plays in orange and purple shirts. | Which colours does the football team wear?
    A volcano under the island of Reyka woke up after six centuries. | Which island has a volcano that woke up?
    The tailor needs eleven metres of silk for a ball gown. | How much silk does a ball gown need?
    The dentist of Prime Minister Halloran retired to a vineyard. | Where did the dentist retire to?
    Wolves were seen near the ski lift on Sunday morning. | Which animals were seen near the ski lift?
    The orchestra lost its only harp during the flood. | Which instrument did the orchestra lose?
    The astronaut Yamada took a jar of plum jam into orbit. | What did the astronaut take into space?
    Tickets for the puppet theatre cost three coins and a song. | What do tickets for the puppet theatre cost?
    The carpenter Ewald built a staircase without a single nail. | Who built the staircase?
    The queen dislikes the smell of lilies in her bedroom. | Which flowers does the queen dislike?
    A lorry full of oranges overturned near the airport of Valencia. | What was the overturned lorry carrying?
    The ferry between the two islands carries at most twelve cows. | How many cows fit on the ferry?
    Grandfather Tobias cured his cough with onion syrup. | How did grandfather cure his cough?
    The thieves entered the jewellery shop through the chimney. | How did thieves get into the jewellery shop?
    The marathon of Lusaka was won by a postman. | What is the profession of the marathon winner?
    The library of Sankt Veit lends out fishing rods as well. | Where can one borrow a fishing rod?
    The glacier above Pontresa shrinks by thirty metres a year. | How fast does the glacier shrink?
    The parrot of the innkeeper swears in four languages. | In how many languages does the parrot swear?
    The emperor was afraid of cats and thunder. | What was the emperor afraid of?
    The tea from the northern slope tastes of smoke and mint. | What does the tea taste of?
    The watchmaker Fontaine repaired the cathedral clock with a hairpin. | How was the cathedral clock repaired?
    The actress Delgado learned to ride a camel for her last film. | What did the actress learn for her film?
    The miners found a cave with blue crystals below the third shaft. | What did the miners find in the cave?
    The judge fined the neighbour for his crowing rooster. | Why was the neighbour fined?
    The wine of 1962 was ruined by a late frost. | What ruined the wine?
    A whale followed the sailing ship for nineteen days. | How long did the whale follow the ship?
    The twins Anja and Mira were born in different years. | Which twins were born in different years?
    The soldiers traded their boots for potatoes. | What did the soldiers get for their boots?
    The observatory is painted white to keep the telescope cool. | Why is the observatory white?
    The poet Marchetti wrote his best verses in a laundry. | Where did the poet write his verses?
    The hotel at the lake has no room with the number seven. | Which room number does the hotel lack?
    The farmer's scarecrow wears the uniform of an admiral. | What is the scarecrow dressed in?
    The gardener waters the roses with cold coffee. | What are the roses watered with?
    The hospital of Arvika was built on an old racecourse. | What was there before the hospital?
    The plumber found a gold coin in the kitchen pipe. | Where did the plumber find a coin?
    The swimming pool is heated by the ovens of the brickworks. | How is the swimming pool heated?
    The oldest inhabitant of Sora eats a raw egg each morning. | What does the oldest inhabitant eat for breakfast?
    The kite of the schoolchildren rose to two thousand metres. | How high did the kite fly?
    The elephant of the circus is called Bartholomew. | What is the elephant called?
    The bishop forbade dancing on the frozen river. | What did the bishop forbid?
    The perfume is made from the roots of a swamp iris. | What is the perfume made of?
    The taxi driver Nasser speaks fluent Latin. | Which language does the taxi driver speak?
    The shoemaker's daughter became a judge in Toronto. | What became of the daughter of the shoemaker?
    The sculptor Brandt works only with wood from shipwrecks. | What material does the sculptor use?
    The cheese ripens for three years in a salt mine. | Where does the cheese ripen?"""
FACTS: tuple[tuple[str, str], ...] = tuple(
    (statement, question) for statement, question in (line.strip().split(" | ") for line in _LINES.strip().splitlines())
)
"""A statement and its question each."""
